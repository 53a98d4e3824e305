"""A site with one job after the other, over a real journal, that is killed (-9) at places of choice.

    python -m tests.integration.federation.store.mortal FOLDER

prints one JSON line a place: what of the story was done there, what the next life found, and what came of it all. Each
life is a fork of this process. What a job does outside of the journal is a line in a file, written by whoever claims
its attempt first.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from federation.engine.effects import Effect, Fence, FetchResults, Forget, HandOver, Look, PushInputs, Send
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.model.messages import Room as PoolRoom
from federation.model.messages import Rooms
from federation.model.spec import Input, JobSpec
from federation.model.states import End, Origin, Outcome, Target
from federation.model.token import Key
from federation.policy.admit import Guest, House
from federation.ports import Now, Seen, Sight
from federation.store.room import Room
from federation.store.store import Store
from federation.store.writer import Writer

SITE = "edge"
GUEST = Guest(pools=("batch",), users={"ann": "ann"})
RULES = SiteRules(name=SITE, peers=(), origin=OriginRules(), house=House(pools={"batch": 10}, guests={SITE: GUEST}))
JOBS = {
    "plain": JobSpec(user="ann", script=b"plain"),
    "inputs": JobSpec(user="ann", script=b"inputs", inputs=(Input(path=b"in", size=1, sha256=b""),)),
    "refused": JobSpec(user="ann", script=b"cancelled when it is refused", pin="nowhere"),
}
MOST_ROUNDS = 60
JUMP_S = 20.0  # each round, so that all that waits for a time is due


class Life:
    """One process's site. Effects are done at once, and nothing else happens meanwhile: places come in one order."""

    def __init__(self, folder: Path, at: Callable[[str], None]) -> None:
        self.folder = folder
        self.clock = time.time()
        room = Room(folder / "fed.db", reserve_bytes=0, ballast_bytes=1 << 16)
        self.writer = Writer(folder / "fed.db", journal=UUID(int=7), room=room, at=at)
        self.engine = SiteEngine(RULES, self.now())

    def now(self) -> Now:
        return Now(wall=self.clock, mono=self.clock)

    async def act(self, step: Callable[[Store], list[Effect]]) -> None:
        for effect in await self.writer.run(step):
            await self.do(effect)

    async def do(self, effect: Effect) -> None:
        engine, target = self.engine, self.engine.target
        match effect:
            case Send():
                await self.act(lambda store: engine.message(store, SITE, effect.message, self.now()))
            case HandOver():
                self.run(effect.key, effect.spec)
                await self.act(lambda store: target.handed_over(store, effect.key, "1", self.now()))
            case Look():
                seen = {key: self.seen(key) for key in effect.keys}
                await self.act(lambda store: target.looked(store, seen, self.now()))
            case Fence():
                never = self.claim(effect.key, "fence") == "fence"
                await self.act(lambda store: target.fenced(store, effect.key, never, self.now()))
            case PushInputs():
                await self.act(lambda store: target.inputs_here(store, effect.key, self.now()))
            case Forget():
                await self.act(lambda store: target.forgotten(store, effect.key))
            case FetchResults():
                await self.act(lambda store: engine.follower.fetched(store, effect.key, self.now()))

    def claim(self, key: Key, who: str) -> str:
        path = self.folder / "claims" / str(key).replace("/", "-")
        path.parent.mkdir(exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(who)
        except FileExistsError:
            return path.read_text()
        return who

    def run(self, key: Key, spec: JobSpec) -> None:
        path = self.folder / "claims" / str(key).replace("/", "-")
        if not path.exists() and self.claim(key, "job") == "job":
            with (self.folder / "ran").open("a") as file:
                file.write(f"{spec.script.decode()}\n")

    def seen(self, key: Key) -> Seen:
        if not (self.folder / "claims" / str(key).replace("/", "-")).exists():
            return Seen(sight=Sight.ABSENT)
        outcome = Outcome(end=End.EXITED, exit_code=3, started_at=1.0, ended_at=2.0, stdout_size=5)
        return Seen(sight=Sight.EXITED, outcome=outcome)

    async def accept(self, number: int, spec: JobSpec) -> None:
        await self.writer.run(lambda store: self.engine.origin.accept(store, UUID(int=number), spec, self.now()))

    async def live(self) -> dict[str, Any]:
        """The whole story, or what is left of it: every user asks again until he is answered."""
        engine = self.engine
        await self.act(lambda store: engine.start(store, self.now()))
        rooms = Rooms(pools=(PoolRoom(pool="batch", free_jobs=10, free_cpus=10),))
        await self.act(lambda store: engine.message(store, SITE, rooms, self.now()))
        for number, spec in enumerate(JOBS.values(), 1):
            await self.accept(number, spec)
            with (self.folder / "accepted").open("a") as file:
                file.write(f"{number}\n")
        for _ in range(MOST_ROUNDS):
            self.clock += JUMP_S
            await self.act(lambda store: engine.due(store, self.now()))
            if await self.writer.run(self.settled):
                break
        found = await self.writer.run(self.found)
        await self.writer.close()
        return found

    def settled(self, store: Store) -> bool:
        waits = store.job(UUID(int=len(JOBS)))
        if waits is not None and waits.state is Origin.QUEUED and waits.reasons:
            self.engine.origin.cancel(store, waits.token, self.now())
        return not sum(store.jobs().values()) and not sum(store.attempts().values()) and not store.due_commands(1e12, 1)

    def found(self, store: Store) -> dict[str, Any]:
        jobs = [store.job(UUID(int=number)) for number in range(1, len(JOBS) + 1)]
        attempts = store.attempts_since(SITE, 0, 100)
        return {
            "jobs": [[job.state, job.attempt, job.outcome and job.outcome.end] if job else None for job in jobs],
            "attempts": sorted(str(one.key) for one in attempts if one.state is Target.RELEASED),
            "ran": sorted((self.folder / "ran").read_text().split()),
        }


def life(folder: Path, die_at: int | None) -> tuple[int, str]:
    """One process: its wait status, and the place where it died."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        place = folder / "place"
        return status, place.read_text() if place.exists() else ""
    passed = 0

    def at(place: str) -> None:
        nonlocal passed
        if passed == die_at:
            (folder / "place").write_text(place)
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    async def live() -> dict[str, Any]:
        return await Life(folder, at).live()

    try:
        (folder / "found").write_text(json.dumps(asyncio.run(live())))
        (folder / "passed").write_text(str(passed))
    finally:
        os._exit(0 if (folder / "passed").exists() else 1)


def main(root: Path) -> None:
    number = 0
    while True:
        folder = root / str(number)
        folder.mkdir()
        status, place = life(folder, number)
        accepted = (folder / "accepted").read_text().split() if (folder / "accepted").exists() else []
        again = 0 if (folder / "passed").exists() else life(folder, None)[0]
        found = json.loads((folder / "found").read_text()) if (folder / "found").exists() else None
        print(json.dumps({"place": place, "status": status, "accepted": accepted, "again": again, "found": found}))
        if not place:
            return  # more places than a life has
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
