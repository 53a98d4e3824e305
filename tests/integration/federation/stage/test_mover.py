"""What an origin takes of one job is bounded by what came, not by what the far side says of it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.mover import Mover
from federation.stage.spool import Home, Spool
from federation.store.store import Store
from tests.integration.federation.site import until
from tests.integration.federation.stage.bench import KEY, ROOT, Offer

T = TypeVar("T")


class Engine:
    def __init__(self) -> None:
        self.here: list[Key] = []

    async def read(self, call: Callable[[Store], T]) -> T:
        spec = JobSpec(user="root", outputs=(b"file",))
        return call(type("Known", (), {"spec": lambda _self, _token: spec})())

    async def results_here(self, key: Key, remark: str = "") -> None:
        self.here.append(key)


@pytest.mark.parametrize(("most", "fits"), [(8, True), (7, False)])
@pytest.mark.parametrize("claimed", [0, 1, 5])
async def test_outputs_and_files_are_bounded_together(tmp_path: Path, most: int, claimed: int, fits: bool) -> None:
    (tmp_path / "home").mkdir()
    spool = Spool(tmp_path / "spool")
    spool.begin(KEY.token, Home(user="root", folder=str(tmp_path / "home")))
    far, engine = Offer.of(file=b"abc"), Engine()
    far.parts = [
        pb.OutputPart(stream=pb.STREAM_STDOUT, offset=0, data=b"12345"),
        pb.OutputPart(stream=pb.STREAM_STDOUT, offset=5, end=True),
        pb.OutputPart(stream=pb.STREAM_STDERR, offset=0, end=True),
    ]
    mover = Mover(spool, lambda: engine, lambda _: far, lambda _: ROOT, lambda _: most)
    mover.follow("hpc", KEY)  # somebody read it while it ran
    await until(lambda: _is(not mover._tasks))
    assert mover.pull(KEY).ended
    ended = Outcome(end=End.EXITED, exit_code=0, started_at=1.0, ended_at=2.0, stdout_size=claimed)
    mover.fetch_results("hpc", KEY, ended)
    progress = mover.progress[KEY]
    await until(lambda: _is(bool(engine.here or progress.why)))
    assert (engine.here == [KEY], (tmp_path / "home/file").exists()) == (fits, fits)
    assert fits or progress.why.startswith("its output has 3 bytes, and 2 are taken")
    await mover.close()


async def _is(done: bool) -> bool:
    return done


async def test_an_output_that_nobody_looks_at_any_more_is_not_remembered(tmp_path: Path) -> None:
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: None, lambda _: ROOT)
    looked_at = mover.pull(KEY)
    assert mover.pull(KEY) is looked_at
    del looked_at
    assert len(mover._pulls) == 0
