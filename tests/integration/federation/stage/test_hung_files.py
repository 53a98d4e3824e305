"""What is a user's is opened on threads of its own file system, which may hang: all else is done on others."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from federation.access.paths import Folder
from federation.model.states import End, Outcome, Target
from federation.model.token import Key
from federation.ports import Place
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.fetch import fetch
from federation.stage.pull import Pull
from federation.wire.convert import key_to_wire
from tests.integration.federation.daemons import passable
from tests.integration.federation.stage.bench import KEY, Far, Offer, chunks, file_of, goal

DATA = os.urandom(3 << 20)


@pytest.fixture(name="passable")
def _passable() -> Iterator[Path]:
    with passable() as found:
        yield found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(thread_name_prefix="own") as found:
        yield found


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads, less their numbers, on which folders of users' were opened."""
    names, whole = set[str](), Folder.__init__

    def opened(folder: Folder, path: Path) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        whole(folder, path)

    monkeypatch.setattr(Folder, "__init__", opened)
    return names


@dataclass
class Mounted(Far):
    threads: ThreadPoolExecutor | None = field(default=None, kw_only=True)

    async def place(self, key: Key, user: str) -> Place:
        return replace(await super().place(key, user), threads=self.threads)


async def test_inputs_outputs_and_results_at_a_target(
    passable: Path, threads: ThreadPoolExecutor, used: set[str]
) -> None:
    file = file_of(b"in/data", DATA)
    there = Mounted(passable, [file], threads=threads)
    await there.put(*chunks(DATA))
    assert await there.commit(file) == []
    assert used == {"own"}
    used.clear()
    (there.work / "o").write_bytes(DATA)
    (there.work / "o").chmod(0o644)
    (there.work / "e").touch(0o644)
    there.goes_to(Target.ENDED, Outcome(end=End.EXITED, exit_code=0, stdout_size=len(DATA)))
    await Pull(KEY, passable).run(there.near)
    await there.near.results(pb.ResultsRequest(key=key_to_wire(KEY)))
    assert used == {"own"}


async def test_what_is_brought_to_a_users_folder(tmp_path: Path, threads: ThreadPoolExecutor, used: set[str]) -> None:
    await fetch(Offer.of(out=DATA), KEY, replace(goal(tmp_path), threads=threads), lambda _: None)
    assert (tmp_path / "out").read_bytes() == DATA
    assert used == {"own"}
