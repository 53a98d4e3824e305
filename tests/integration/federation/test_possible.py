"""What no pool could run is refused when it is submitted; where one is not heard, that is no refusal, and is told."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from federation.desk import possible
from federation.desk.possible import check_possible, settled
from federation.errors import Refused
from federation.model.spec import JobSpec
from federation.runner import Runner
from tests.integration.federation.site import SPEC, Net, Site, linked, until

HUGE = replace(SPEC, gres="tape:1")  # of which no pool tells anything
TARGETS = frozenset({"hpc"})


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[Site, Site]]:
    """Edge, with a pool of its own, and hpc; not linked yet. Of lab nobody hears."""
    net = Net(tmp_path)
    edge, hpc, _ = net.site("edge", "hpc", "lab"), net.site("hpc", "edge"), net.site("lab")
    async with edge.up(), hpc.up():
        yield edge, hpc


def runner(site: Site) -> Runner:
    assert site.runner is not None
    return site.runner


async def offered(edge: Site, count: int) -> None:
    async def told() -> bool:
        found = await runner(edge).read(lambda store: possible.known(runner(edge).engine, store, "", TARGETS))
        return len(found.pools) >= count

    await until(told)


async def taken(edge: Site, spec: JobSpec) -> str:
    targets = TARGETS | {"lab"} if spec.pin == "lab" else TARGETS
    await check_possible(runner(edge), targets, spec)
    job = await runner(edge).accept(uuid4(), spec)
    return await settled(runner(edge), targets, job.token)


async def test_who_is_not_heard_may_have_a_pool_for_it(both: tuple[Site, Site]) -> None:
    edge, hpc = both
    await offered(edge, 2)
    assert await taken(edge, HUGE) == "none of 2 pools fits now: fed explain"
    assert await taken(edge, replace(SPEC, pin="lab")) == ("none of 2 pools fits now: fed explain; no word of lab")
    await linked(edge, hpc)
    with pytest.raises(Refused, match=r"no pool can run this: edge/batch: .*; hpc/batch: ") as refused:
        await taken(edge, HUGE)
    assert refused.value.hint == "edge/batch takes it with --to edge"
    await runner(edge).link("hpc", up=False)
    assert await taken(edge, HUGE) == "none of 2 pools fits now: fed explain"
    assert await taken(edge, SPEC) == ""


async def test_a_peer_that_only_sends_jobs_here_is_not_waited_for(both: tuple[Site, Site]) -> None:
    edge, _ = both
    await offered(edge, 2)
    with pytest.raises(Refused, match="edge/batch"):
        await check_possible(runner(edge), frozenset(), HUGE)
    with pytest.raises(Refused, match="no pool that it may go to"):
        await check_possible(runner(edge), frozenset(), replace(SPEC, pin="lab"))


async def test_what_every_pool_refused_is_cancelled_and_told(both: tuple[Site, Site]) -> None:
    edge, hpc = both
    await linked(edge, hpc)
    await offered(edge, 2)
    stranger = replace(SPEC, user="bob")
    with pytest.raises(Refused, match=r"edge/batch: .*bob.*; hpc/batch: it refused this job: user bob of edge"):
        await taken(edge, stranger)
    with pytest.raises(Refused, match="hpc/batch: it refused this job: user bob of edge is nobody here"):
        await taken(edge, replace(stranger, pin="hpc"))
    assert await runner(edge).read(lambda store: store.open_jobs("", 10)) == []


async def test_no_answer_is_no_refusal(both: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch) -> None:
    edge, hpc = both
    await linked(edge, hpc)
    await offered(edge, 2)
    monkeypatch.setattr(possible, "ANSWER_S", 0.2)
    hpc.net.cut = True
    assert await taken(edge, replace(SPEC, pin="hpc")) == ""
    edge.backend.full = True
    await runner(edge).tell_rooms()
    assert await taken(edge, replace(SPEC, pin="edge")) == (
        "no pool fits now: edge/batch: full: it takes no more jobs now"
    )
