"""What a target remembers of results is bounded by what is in it, not by how many jobs left some."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.model.job import Attempt
from federation.model.spec import JobSpec
from federation.model.states import Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage import results
from federation.stage.holdings import Holdings
from federation.stage.results import Results
from federation.stage.slots import MOST_PARTS
from federation.wire.convert import key_to_wire
from tests.integration.federation.daemons import passable
from tests.integration.federation.stage.bench import KEY, Far

OTHER = Key(KEY.token, 2)


@pytest.fixture(name="passable")
def _passable() -> Iterator[Path]:
    with passable() as found:
        yield found


async def test_lists_that_are_remembered_are_bounded_and_one_that_is_not_is_made_again(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MOST_LISTED", 5)
    there = Far(passable, [])
    keys = [Key(KEY.token, number) for number in range(2, 6)]
    for key in keys:
        ended = Attempt(key=key, origin="edge", pool="batch", user="nobody", state=Target.ENDED)
        there.store.add_attempt(ended, JobSpec(user="ann", outputs=(b"out",)))
    (there.work / "out").write_bytes(b"abc")
    (there.work / "out").chmod(0o644)
    kept = Results(Holdings(there, {"batch": there}, least_uid=1000))
    for key in keys:
        manifest = await kept.results("edge", pb.ResultsRequest(key=key_to_wire(key)))
    assert (list(kept._lists), kept._listed) == (keys[-2:], 4)  # of a file and a chunk each
    request = pb.ChunkList(key=key_to_wire(keys[0]), sha256=manifest.files[0].chunks)
    assert [one.data async for one in kept.get("edge", request)] == [b"abc"]
    monkeypatch.setattr(results, "MOST_LISTS", 1)
    await kept.results("edge", pb.ResultsRequest(key=key_to_wire(keys[1])))
    assert (list(kept._lists), kept._listed) == ([keys[1]], 2)


@pytest.mark.timeout(30)
async def test_chunks_that_a_peer_does_not_take_are_held_up_to_its_share(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Far(passable, [])
    ended = Attempt(key=OTHER, origin="edge", pool="batch", user="nobody", state=Target.ENDED)
    there.store.add_attempt(ended, JobSpec(user="ann", outputs=(b"out",)))
    (there.work / "out").write_bytes(b"abc")
    (there.work / "out").chmod(0o644)
    kept = Results(Holdings(there, {"batch": there}, least_uid=1000))
    manifest = await kept.results("edge", pb.ResultsRequest(key=key_to_wire(OTHER)))
    request = pb.ChunkList(key=key_to_wire(OTHER), sha256=manifest.files[0].chunks)
    streams = [kept.get("edge", request) for _ in range(MOST_PARTS)]
    for one in streams:
        assert (await anext(one)).data == b"abc"
    more = asyncio.ensure_future(anext(kept.get("edge", request)))
    await asyncio.wait((more,), timeout=0.3)
    assert not more.done()
    with pytest.raises(StopAsyncIteration):
        await anext(streams[0])  # it was taken
    assert (await more).data == b"abc"
