"""The controller with its real link and munge, on a Slurm and agents that the test plays."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_plugin import catalogue
from slurm_plugin.controller import books, daemon, engine, steps
from slurm_plugin.controller.daemon import running
from slurm_plugin.controller.engine import Engine
from slurm_plugin.errors import ConfigError, LinkError, SlurmUnavailable, Untrusted
from slurm_plugin.link.client import Link, open_link
from slurm_plugin.link.munge import Munge
from slurm_plugin.pool import ControllerPlace, Mode, PoolConfig
from tests.integration.controller.site import DictSlurm, ListAgent, agent, until
from tests.integration.link.munged import Late, munged
from tests.unit.controller import pools

NODES = ("n1", "n2")


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop with shorter waits."""
    for module, name in ((engine, "POLL_S"), (engine, "RETRY_S"), (books, "POLL_S")):
        monkeypatch.setattr(module, name, 0.1)
    monkeypatch.setattr(steps, "FIRST_PAUSE_S", 0.2)


@dataclass
class Site:
    """One running controller and how to reach it. `config` is what its pool.yaml says now."""

    config: PoolConfig
    slurm: DictSlurm
    socket: Path
    engine: Engine
    address: str

    def agent(self, node: str, *layouts: tuple[tuple[str, int], ...]) -> AbstractAsyncContextManager[ListAgent]:
        gpus = [pools.gpu(f"{node}-{nth}", layout, index=nth) for nth, layout in enumerate(layouts)]
        return agent(self.address, self.socket, node, gpus)

    async def link(self) -> Link:
        return await open_link(self.address, munge=Munge(self.socket))

    def lay_out(self, layout: Mapping[str, int]) -> None:
        self.config = replace(self.config, groups=(pools.group(*NODES, layout=layout),))

    def gres(self, node: str) -> dict[str, int]:
        return {i.type: i.count for i in self.slurm.node_list[node].gres if i.name == "vgpu"}


@asynccontextmanager
async def controller(
    socket: Path,
    tmp_path: Path,
    *,
    slurm: DictSlurm | None = None,
    mode: Mode = Mode.MANAGE,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Site]:
    place = ControllerPlace(
        listen="127.0.0.1:0", state_dir=tmp_path / "state", catalogue=tmp_path / "catalogue", munge_socket=socket
    )
    config = replace(pools.config(*NODES), controller=place, mode=mode, default_class="1g.10gb")
    slurm = slurm or DictSlurm({name: pools.slurm_node(name) for name in NODES})
    sites: list[Site] = []
    broken: list[bool] = []
    async with running(
        config,
        slurm,
        reload=lambda: sites[0].config,
        on_end=lambda: broken.append(True),
        clock=clock or time.time,
        tick=clock or time.monotonic,
    ) as (engine, port):
        sites.append(Site(config, slurm, socket, engine, f"127.0.0.1:{port}"))
        yield sites[0]
    assert not broken
    assert not slurm.wrong


async def test_idle_slices_are_offered_published_and_catalogued(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1, site.agent("n2", pools.SEVEN):
        await until(lambda: site.gres("n2").get("1g.10gb") == 7)
        await until(lambda: site.gres("n1") == {"1g.10gb": 4, "3g.40gb": 1, "pad": 995})
        await until(lambda: n1.as_offered() == {"1g.10gb": 4, "3g.40gb": 1})
        book = catalogue.parse((tmp_path / "catalogue").read_text())
        assert book.default == "1g.10gb"
        assert set(book.nodes) == {"n1", "n2"}
        assert book.by_shape[book.nodes["n1"]].most["7g.80gb"] == 1  # whatever it is cut into now
        assert (tmp_path / "catalogue").stat().st_mode & 0o777 == 0o644


async def test_waiting_job_gets_the_smallest_idle_slice_offered_as_its_class(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1)
        site.slurm.jobs[7] = pools.pending(7, "m20")
        await until(lambda: site.gres("n1").get("m20") == 1)
        assert "3g.40gb" not in site.gres("n1")
        await until(lambda: n1.as_offered() == {"1g.10gb": 4, "m20": 1})


async def test_job_that_starts_binds_and_ends_needs_no_update(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.as_offered() == {"1g.10gb": 7})
        writes = len(site.slurm.written)
        for job in range(1, 4):
            site.slurm.jobs[job] = pools.pending(job, "1g.10gb")
            started_at = site.slurm.start(job, "n1")
            await n1.bind(job, "1g.10gb", started_at=started_at)
        passes = site.engine.passes
        await until(lambda: site.engine.passes >= passes + 2)
        site.slurm.end(1)
        await n1.release(1)
        passes = site.engine.passes
        await until(lambda: site.engine.passes >= passes + 2)
        assert site.gres("n1")["1g.10gb"] == 7
        assert len(site.slurm.written) == writes


async def test_layout_changes_around_running_jobs(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "1g.10gb")
        started_at = site.slurm.start(1, "n1")
        held = await n1.bind(1, "1g.10gb", started_at=started_at)
        start = next(i.start for i in n1.gpus["GPU-n1-0"].instances if i.uuid == held)
        site.slurm.jobs[2] = pools.pending(2, "3g.40gb")
        site.lay_out({"3g.40gb": 2})
        plan = (await link.apply()).plan
        assert [gpu.action for gpu in plan.gpus] == ["change"]
        assert "job 1" in plan.gpus[0].why
        await until(lambda: site.gres("n1").get("3g.40gb") == 1)  # beside the running job
        assert ("1g.10gb", start) in n1.layout("GPU-n1-0")
        assert site.gres("n1")["1g.10gb"] == 1  # never below what is used
        assert [gpu.action for gpu in (await link.plan()).gpus] == ["wait"]
        await until(lambda: n1.offers[held].ask)
        site.slurm.end(1)
        await n1.release(1)
        assert "1g.10gb" not in site.gres("n1")  # published before the epilog returned
        await until(lambda: n1.layout("GPU-n1-0") == [("3g.40gb", 0), ("3g.40gb", 4)])
        await until(lambda: site.gres("n1").get("3g.40gb") == 2)
        assert [gpu.action for gpu in (await link.plan()).gpus] == ["keep"]


async def test_slices_are_withheld_and_counted_out_before_they_are_destroyed(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        counted: list[int] = []

        def make_nothing_while_counted() -> None:
            counted.append(len(n1.steps))

        site.slurm.before_write = make_nothing_while_counted
        site.lay_out({"7g.80gb": 1})
        await link.apply()
        await until(lambda: n1.layout("GPU-n1-0") == [("7g.80gb", 0)])
        assert counted == [0]  # the counts without them were written before the step was sent
        await until(lambda: site.gres("n1") == {"7g.80gb": 1, "pad": 999})


async def test_job_on_its_way_to_a_slice_holds_the_change_up(socket: Path, tmp_path: Path) -> None:
    """It runs for Slurm, and its prolog has not bound yet: its node's slices stay until it has."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        now = int(site.engine.started_at)
        site.slurm.jobs[1] = pools.pending(1, "1g.10gb")
        site.slurm.start(1, "n1", started_at=now)
        site.lay_out({"7g.80gb": 1})
        await link.apply()
        await until(lambda: site.gres("n1").get("1g.10gb") == 1)
        passes = site.engine.passes
        await until(lambda: site.engine.passes >= passes + 2)
        assert not n1.steps
        await n1.bind(1, "1g.10gb", started_at=now)
        site.slurm.end(1)
        await n1.release(1)
        await until(lambda: n1.layout("GPU-n1-0") == [("7g.80gb", 0)])


async def test_restart_of_slurmctld_under_running_jobs(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        for job in (1, 2):
            site.slurm.jobs[job] = pools.pending(job, "1g.10gb")
            started_at = site.slurm.start(job, "n1")
            await n1.bind(job, "1g.10gb", started_at=started_at)
        site.slurm.restart()
        await until(lambda: site.gres("n1") == {"1g.10gb": 5, "pad": 995})  # the two are counted untyped
        site.slurm.end(1)
        await n1.release(1)
        await until(lambda: site.gres("n1")["1g.10gb"] == 6)
        site.slurm.end(2)
        await n1.release(2)
        await until(lambda: site.gres("n1")["1g.10gb"] == 7)


async def test_nothing_starts_while_a_new_slurmctld_ends_what_it_forgot(socket: Path, tmp_path: Path) -> None:
    """slurmd refuses the job that it starts anew in that second."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        site.slurm.restart()
        began = time.monotonic()
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        assert time.monotonic() - began >= books.SETTLE_S


async def test_waiting_3g_gets_the_next_freed_one_under_a_stream_of_smaller_jobs(socket: Path, tmp_path: Path) -> None:
    """Jobs of 10 GB fill the 3g slices too. The 3g job gets the first that is freed, before a job of the stream can."""
    wide = (("3g.40gb", 0), ("3g.40gb", 4))
    async with controller(socket, tmp_path) as site, site.agent("n1", wide) as n1:
        await until(lambda: site.gres("n1").get("3g.40gb") == 2 and n1.offers)
        for job in (1, 2, 3):  # the third always waits
            site.slurm.jobs[job] = pools.pending(job, "m10")
        await until(lambda: site.gres("n1").get("m10") == 2)
        for job in (1, 2):
            await until(lambda: n1.as_offered().get("m10"))
            started_at = site.slurm.start(job, "n1")
            await n1.bind(job, "m10", started_at=started_at)
        site.slurm.jobs[9] = pools.pending(9, "3g.40gb", priority=50)
        await until(lambda: all(offer.ask for offer in n1.offers.values()))
        site.slurm.end(1)
        await n1.release(1)
        # The epilog is over: what Slurm may start now is the 3g job alone.
        assert site.slurm.free("n1", "m10") == 0
        assert site.slurm.free("n1", "3g.40gb") == 1


async def test_job_started_while_a_count_is_taken_away_is_put_right_at_once(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        site.slurm.before_write = lambda: site.slurm.start(1, "n1", started_at=int(time.time()))
        site.slurm.jobs[2] = pools.pending(2, "m20", priority=9)
        await until(lambda: 1 in site.slurm.jobs and site.slurm.jobs[1].state == "RUNNING")
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and "m20" not in site.gres("n1"))
        assert site.slurm.free("n1", "3g.40gb") == 0


async def test_slurm_away_keeps_epilogs_moving_and_is_told(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        started_at = site.slurm.start(1, "n1")
        held = await n1.bind(1, "3g.40gb", started_at=started_at)
        site.slurm.jobs[2] = pools.pending(2, "m40")
        await until(lambda: n1.offers[held].ask)
        site.slurm.fault = SlurmUnavailable("Unable to contact slurm controller")
        await n1.release(1)  # returns: the verdict comes all the same
        assert "Unable to contact" in (await link.status()).problems[0]
        site.slurm.fault = None
        site.slurm.end(1)
        await until(lambda: site.gres("n1").get("m40") == 1)
        assert not (await link.status()).problems


async def test_failed_step_is_told_and_tried_again_later(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        n1.refuse = "In use by another client"
        site.lay_out({"7g.80gb": 1})
        await link.apply()
        await until(lambda: n1.steps)
        await until(lambda: list(site.engine.desk.steps.problems("n1")))
        (node,) = [node for node in (await link.status()).nodes if node.node == "n1"]
        assert any("In use by another client" in line for line in node.problems)
        n1.refuse = ""
        await until(lambda: n1.layout("GPU-n1-0") == [("7g.80gb", 0)])
        await until(lambda: not list(site.engine.desk.steps.problems("n1")))


async def test_controller_that_died_leaves_the_pool_as_it_is_and_the_next_one_agrees(
    socket: Path, tmp_path: Path
) -> None:
    slurm = DictSlurm({name: pools.slurm_node(name) for name in NODES})
    async with controller(socket, tmp_path, slurm=slurm) as site, site.agent("n1", pools.MIXED):
        await until(lambda: site.gres("n1").get("3g.40gb") == 1)
    written, book = len(slurm.written), (tmp_path / "catalogue").read_text()
    async with controller(socket, tmp_path, slurm=slurm) as site:
        await until(lambda: site.engine.passes > 1)
        assert len(slurm.written) == written  # its agent may be back soon: nothing is taken from the pool
        assert catalogue.parse((tmp_path / "catalogue").read_text()) == catalogue.parse(book)
        async with site.agent("n1", pools.MIXED) as n1:
            await until(lambda: n1.as_offered() == {"1g.10gb": 4, "3g.40gb": 1})
            assert len(slurm.written) == written


async def test_observing_controller_changes_nothing(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path, mode=Mode.OBSERVE) as site, site.agent("n1", pools.MIXED):
        async with await site.link() as link:
            await until(lambda: site.engine.desk.decision and site.engine.desk.decision.gres)
            status = await link.status()
        assert not site.slurm.written
        assert not (tmp_path / "catalogue").exists()
        assert [node.agent_connected for node in status.nodes] == [True, False]
        assert len(status.nodes[0].offers) == 5


async def test_plan_for_another_file_and_a_wrong_one(socket: Path, tmp_path: Path) -> None:
    text = "version: 1\npool: hpc\npartitions: [gpu]\nnodes: [{hosts: n1, layout: {3g.40gb: 2}}, {hosts: n9}]\n"
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        reply = await link.plan(text)
        assert [(gpu.node, gpu.action, len(gpu.destroy), len(gpu.create)) for gpu in reply.gpus] == [
            ("n1", "change", 7, 2)
        ]
        assert any("n9" in line for line in reply.problems)
        with pytest.raises(ConfigError, match=r"pool\.yaml:3: unknown key 'partition'"):
            await link.plan(text.replace("partitions", "partition"))
        passes = site.engine.passes
        await until(lambda: site.engine.passes > passes)
        assert not n1.steps


async def test_agent_of_a_node_that_is_not_in_the_pool_is_refused(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link, link.session() as session:
        stranger = ListAgent("n9", {}, session)
        await stranger.tell()
        with pytest.raises(ConfigError, match=r"'n9' is not in pool\.yaml"):
            await stranger.listen()


async def test_second_session_of_a_node_takes_over(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link, link.session() as old:
        dead = ListAgent("n1", {}, old)
        await dead.tell()
        await until(lambda: site.engine.desk.roster["n1"].outbox is not None)
        async with site.agent("n1", pools.MIXED) as n1:
            with pytest.raises(LinkError):
                await dead.listen()
            await until(lambda: n1.as_offered() == {"1g.10gb": 4, "3g.40gb": 1})


async def test_an_apply_tells_every_agent_that_its_gpus_in_quarantine_are_worth_a_try(
    socket: Path, tmp_path: Path
) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)
        assert n1.retries == 0
        await link.apply()
        await until(lambda: n1.retries == 1)


async def test_a_host_that_is_refused_for_its_clock_is_told_for_a_while(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent never gets in, so nobody else can tell."""
    monkeypatch.setattr(daemon, "CLOCKS_S", 3.0)
    async with controller(socket, tmp_path) as site:
        async with await open_link(site.address, munge=Late(socket, ttl_s=1)) as late:
            with pytest.raises(Untrusted, match="Expired"):
                await late.status()
        problems = site.engine.desk.problems
        assert problems["clocks"] == "munge refuses 127.0.0.1: its clock is not the controller's"
        await until(lambda: "clocks" not in problems)
