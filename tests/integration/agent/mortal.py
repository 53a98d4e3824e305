"""An agent on simulated GPUs that lives through a few jobs and steps, and is killed (-9) at places of choice.

    python -m tests.integration.agent.mortal FOLDER

prints one JSON line a place: how the agent ended there, what the next one found, and what came of it all. Each life is
a fork of this process, so that nothing has to be imported anew.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.agent.peer import Peer, StepProcess
from slurm_plugin.agent.session import Stream
from slurm_plugin.errors import LinkError
from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from slurm_plugin.nvml import NvmlGpus
from slurm_plugin.ports import GresItem
from tests.unit.agent.world import FakeSlurm, run, terms

PATIENCE_S = 60.0
STEP = "recut"  # the story's step that destroys and creates
CALLS = (
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
SLURMSTEPD = StepProcess(job_id=1, step="0", pid=os.getpid(), started=1)  # outlives the agents, as one does


class Life:
    """One process's agent, and what it is asked for."""

    def __init__(self, folder: Path, at: Callable[[str], None]) -> None:
        self.folder, self.state, self.done = folder, folder / "node/nvml.state", folder / "done"
        os.environ["VGPU_SIM_STATE"] = str(self.state)
        self.gpu, self.other = simgpu.snapshot(self.state).gpus
        self.slurm = FakeSlurm()
        self.slurm.runs = {job_id: run(job_id, gres_class) for job_id, gres_class in ((1, "m20"), (2, "m20"))}
        self.slurm.runs[3] = run(3, "2g.20gb")
        self.slurm.steps = {"1.0": (GresItem(name="vgpu", type="m20", count=1),)}
        self.restored = asyncio.Event()
        config = AgentConfig(
            node="n1",
            controller="nowhere:1",
            socket=folder / "agent.sock",
            state_dir=folder / "state",
            proc_root=folder / "node/proc",
            dev_root=folder / "node/dev",
        )
        self.driver = NvmlGpus(proc_root=config.proc_root, dev_root=config.dev_root)
        self.agent = Agent(config, Adapters(slurm=self.slurm, gpus=self.driver, dial=self.dial), at=at)
        self.story: dict[str, Callable[[], Any]] = {
            "agree": lambda: self.agent.runs.agree(terms(self.gpu, self.other)),
            "leave": self.leave,
            "cut": lambda: self.step(create=[("1g.20gb", 0), ("3g.40gb", 4)]),
            "prolog 1": lambda: self.agent.runs.prolog(1),
            "step 1": lambda: self.agent.tasks.view(Peer(pid=SLURMSTEPD.pid, uid=0)),
            STEP: lambda: self.step(destroy=[("3g.40gb", 4)], create=[("1g.20gb", 4), ("1g.20gb", 6)]),
            "prolog 2": lambda: self.agent.runs.prolog(2),
            "epilog 1": self.end,
            "prolog 3": lambda: self.agent.runs.prolog(3),  # cuts where there is room
        }

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Stream]:
        """Nobody answers. An agent that calls has its layouts back."""
        self.restored.set()
        raise LinkError("nobody is there")
        yield

    async def leave(self) -> None:
        """The other GPU is the pool's no more."""
        await self.agent.runs.agree(terms(self.gpu, others=frozenset({self.other})))
        await self.agent.slices.tend()

    async def end(self) -> None:
        """Job 1 is over, and its epilog comes."""
        self.slurm.runs[1] = run(1, state="COMPLETING")
        await self.agent.runs.epilog(1)

    async def step(self, *, create: list[tuple[str, int]], destroy: list[tuple[str, int]] | None = None) -> None:
        """What a controller would ask for that sees what is there."""
        there = {(one.profile, one.start) for gpu in self.agent.book.gpus for one in gpu.instances}
        gone = tuple(one for one in destroy or [] if one in there)
        made = tuple(one for one in create if one not in there)
        if gone or made:
            await self.agent.slices.make(Step(gpu=self.gpu, destroy=gone, create=made))

    async def live(self, *, arm: tuple[str, str] | None = None) -> None:
        """Go on with the story where it stopped. Writes down what was found, and what it came to."""
        async with asyncio.timeout(PATIENCE_S), self.agent.running():
            await self.restored.wait()
            await self.looked()
            (self.folder / "found").write_text(json.dumps(self.look()))
            for name, do in self.story.items():
                if name in self.done.read_text().splitlines():
                    continue
                if name == STEP and arm:
                    simgpu.inject(self.state, call=arm[0], crash=arm[1])
                await do()
                await self.looked()
                with self.done.open("a") as file:
                    file.write(f"{name}\n")
            (self.folder / "ended").write_text(json.dumps(self.look()))

    async def looked(self) -> None:
        """New and freed slices are looked at before they are given out: which is taken hangs on which was seen."""
        while self.agent.book.unseen:  # noqa: ASYNC110 - they are looked at on a thread
            await asyncio.sleep(0.001)

    def look(self) -> dict[str, Any]:
        there = simgpu.snapshot(self.state).instances
        return {
            "layout": sorted((one.profile, one.start) for one in there if len(one.compute) == 1),
            "half": sorted((one.profile, one.start) for one in there if len(one.compute) != 1),
            "grants": {job_id: grant.slices for job_id, grant in self.agent.book.grants.items()},
            "faults": [gpu.fault for gpu in self.agent.book.gpus if gpu.fault],
            "lost": sorted(one.job_id for one in self.agent.book.lost),
            "strays": sorted(path.name for path in (self.folder / "state").rglob(".new-*")),
        }


def step_of(pid: int, _proc: Path) -> StepProcess | None:
    return SLURMSTEPD if pid == SLURMSTEPD.pid else None


def fork(life: Callable[[], None]) -> int:
    """Its exit status; negative: the signal that ended it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        with mock.patch("slurm_plugin.agent.tasks.step_of", step_of):
            life()
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def prepared(folder: Path) -> Path:
    folder.mkdir()
    simgpu.create(folder / "node/nvml.state", product="h100-80gb", count=2, seed=1)
    (folder / "done").touch()
    return folder


def die(folder: Path, nth: int) -> None:
    """Live until the nth place."""
    left = [nth]

    def at(_place: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(Life(folder, at).live())


def go_on(folder: Path) -> None:
    asyncio.run(Life(folder, lambda _place: None).live())


def note(folder: Path) -> list[str]:
    """The places that the next agent passes until it has found everything or made it whole."""

    def at(place: str) -> None:
        if not (folder / "found").exists():
            with (folder / "places").open("a") as file:
                file.write(f"{place}\n")

    (folder / "found").unlink(missing_ok=True)
    (folder / "places").touch()
    fork(lambda: asyncio.run(Life(folder, at).live()))
    return (folder / "places").read_text().splitlines()


def tell_of_the_next(base: Path, first: Callable[[Path], object], *, reboot: bool) -> None:
    """The agent that comes after one that was killed is killed too, at each place where it makes things whole."""

    def killed(folder: Path) -> Path:
        first(prepared(folder))
        if reboot:
            simgpu.reboot(folder / "node/nvml.state")
        simgpu.clear(folder / "node/nvml.state")
        return folder

    for nth, place in enumerate(note(killed(Path(f"{base}-whole")))):
        folder = killed(Path(f"{base}-{nth}"))
        tell(f"again: {place}", folder, fork(lambda: die(folder, nth)), reboot=reboot)  # noqa: B023 - used at once


def tell(place: str, folder: Path, status: int, *, reboot: bool = False) -> None:
    """`reboot`: there was a power cut before."""
    simgpu.clear(folder / "node/nvml.state")
    done = (folder / "done").read_text().splitlines()
    for name in ("found", "ended"):
        (folder / name).unlink(missing_ok=True)
    again = fork(lambda: go_on(folder))
    facts = {"place": place, "status": status, "again": again, "done": done, "reboot": reboot}
    for name in ("found", "ended"):
        facts[name] = json.loads((folder / name).read_text()) if (folder / name).exists() else None
    print(json.dumps(facts), flush=True)


def main(base: Path) -> None:
    whole = prepared(base / "whole")
    places = whole / "places"

    def note_all(place: str) -> None:
        with places.open("a") as file:
            file.write(f"{place}\n")

    status = fork(lambda: asyncio.run(Life(whole, note_all).live()))
    tell("nowhere", whole, status)
    if status:
        sys.exit("the story goes wrong with nobody killed")
    passed = places.read_text().splitlines()
    for nth, place in enumerate(passed):
        folder = prepared(base / f"{nth}")
        tell(place, folder, fork(lambda: die(folder, nth)))  # noqa: B023 - used at once
        if place.startswith("write gpus/"):
            folder = prepared(base / f"{nth}-power")
            status = fork(lambda: die(folder, nth))  # noqa: B023
            simgpu.reboot(folder / "node/nvml.state")
            tell(place, folder, status, reboot=True)
    for call in CALLS:
        for crash in ("before", "inside", "after"):
            tell(f"{call}: {crash}", *crashed(base / f"{CALLS.index(call)}-{crash}", call, crash))
    intent = passed.index("nvml apply: before", passed.index("write state/leases.json: after"))
    tell_of_the_next(base / "a", lambda folder: fork(lambda: die(folder, intent)), reboot=False)
    tell_of_the_next(base / "b", lambda folder: fork(lambda: die(folder, intent)), reboot=True)


def crashed(folder: Path, call: str, crash: str) -> tuple[Path, int]:
    """In the step, at a call of the driver's. The folder's name is short: a socket's path has 107 bytes."""
    return prepared(folder), fork(lambda: asyncio.run(Life(folder, lambda _: None).live(arm=(call, crash))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
