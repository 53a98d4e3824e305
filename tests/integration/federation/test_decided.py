"""What a site decides of what a peer asks is told once, for the audit log, whatever came of it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import grpc
import pytest

from federation.engine.effects import Decided
from federation.model.messages import STOP, Cancel, Signal, Submit
from federation.model.states import Target
from federation.model.token import Key
from federation.peer.links import Links
from federation.peer.session import Border
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.runner import Runner
from federation.server.service import Service
from tests.integration.federation.site import SPEC, Net, Site

KEY = Key(UUID(int=5), 1)
ASKED = Submit(key=KEY, pool="batch", spec=SPEC)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Whose answers nobody hears."""
    net = Net(tmp_path)
    net.cut = True
    for name in ("edge", "other"):
        net.site(name)
    return net.site("hpc", "edge")


@pytest.fixture
async def hpc(site: Site) -> AsyncIterator[Runner]:
    async with site.up() as runner:
        yield runner


async def test_who_is_let_in_and_as_whom(site: Site, hpc: Runner) -> None:
    for _ in range(3):
        await hpc.message("edge", ASKED)
    assert site.decided == [Decided(site="edge", what="job", about=f"{KEY} for ann in batch", why="as ann")]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (replace(ASKED, spec=replace(SPEC, user="bob")), "user bob of edge is nobody here"),
        (replace(ASKED, pool="other"), "edge may not use pool other"),
        (replace(ASKED, spec=replace(SPEC, script=b"x" * (5 << 20))), "its script or its environment is too large"),
        (replace(ASKED, over=True), "it was over, and what it left is not here"),
        (replace(ASKED, spec=replace(SPEC, user="bob"), again=True), "user bob of edge is nobody here"),
    ],
)
async def test_who_is_not_and_why(site: Site, hpc: Runner, asked: Submit, why: str) -> None:
    await hpc.messages("edge", [asked, asked])
    about = f"{KEY} for {asked.spec.user} in {asked.pool}"
    assert site.decided == [Decided(site="edge", what="job", about=about, verdict=False, why=why)]


async def test_a_cancel_and_a_signal_that_a_peer_is_allowed(site: Site, hpc: Runner) -> None:
    site.backend.changed = lambda key: None  # that it is over is not heard of meanwhile
    await hpc.message("edge", ASKED)
    for number in (1, 1, 2):
        await hpc.message("edge", Signal(key=KEY, number=number, signal=10))
    for _ in range(2):
        await hpc.message("edge", Cancel(key=KEY, pool="batch"))
    told = [Decided(site="edge", what="signal", about=f"10 for {KEY}")] * 2
    assert site.decided[1:] == [*told, Decided(site="edge", what="cancel", about=str(KEY))]


async def test_what_comes_to_nothing_is_no_decision(site: Site, hpc: Runner) -> None:
    await hpc.message("edge", ASKED)
    site.decided.clear()
    await hpc.message("edge", Signal(key=KEY, number=1, signal=STOP))  # it does not run
    await hpc.message("edge", Signal(key=Key(UUID(int=6), 1), number=1, signal=10))
    assert site.decided == []


@pytest.mark.parametrize("asked", [ASKED, Cancel(key=KEY, pool="batch"), Signal(key=KEY, number=1, signal=10)])
async def test_another_sites_attempt_is_left_alone(site: Site, hpc: Runner, asked: Submit | Cancel | Signal) -> None:
    """Of a job that moved on every site that had it knows the token."""
    await hpc.message("edge", ASKED)
    before = await hpc.read(lambda store: store.attempt(KEY))
    site.decided.clear()
    await hpc.message("other", asked)
    after = await hpc.read(lambda store: store.attempt(KEY))
    assert before is not None
    assert after is not None
    assert (after.origin, after.signals, after.stopped_for) == ("edge", 0, before.stopped_for)
    assert after.state is not Target.STOPPING
    what = type(asked).__name__.lower()
    assert site.decided == [Decided(site="other", what=what, about=str(KEY), verdict=False, why="it is another site's")]


class Context:
    """Of a call."""

    async def abort(self, code: grpc.StatusCode, details: str, _: object) -> None:
        raise ConnectionAbortedError(code.name, details)


async def test_a_call_that_moves_bytes_and_is_refused() -> None:
    told: list[Decided] = []
    links = Links(Border(site="hpc", software="", receive=unheard), unheard)
    service = Service(links, lambda: "edge", decided=told.append)
    with pytest.raises(ConnectionAbortedError, match="FAILED_PRECONDITION"):
        await service.Commit(pb.CommitRequest(), Context())
    with pytest.raises(ConnectionAbortedError):
        _ = [one async for one in service.Get(pb.ChunkList(), Context())]
    assert [(one.what, one.verdict, one.why) for one in told] == [
        ("Commit", False, "this site moves no bytes"),
        ("Get", False, "this site moves no bytes"),
    ]


async def unheard(*_: object) -> None:
    """Nobody says anything."""
