"""The controller when something comes at the wrong moment: an apply, a fault, an answer that is lost, a slow Slurm."""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin import catalogue
from slurm_plugin.controller import books, engine, fences, loans, roster
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.drains import Drains
from slurm_plugin.controller.turns import CALLS_OF_ONE
from slurm_plugin.document import FILE_BYTES
from slurm_plugin.errors import ConfigError, RequestError, SlurmUnavailable
from slurm_plugin.link.server import Caller
from slurm_plugin.planning import Planning
from slurm_plugin.pool import ControllerPlace, Mode
from tests.integration.controller.site import DictSlurm, until
from tests.integration.controller.test_controller import NODES, Site, controller, quick, socket
from tests.unit.controller import pools

__all__ = ["quick", "socket"]


async def two_passes(site: Site) -> None:
    passes = site.engine.passes
    await until(lambda: site.engine.passes >= passes + 2)


class Gate:
    """Holds Slurm's answer about its queue back while it is closed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.held = asyncio.Event()

    async def __call__(self) -> None:
        self.held.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def test_node_that_leaves_the_pool_while_a_pass_is_under_way(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        site.slurm.reading = gate = Gate()
        await gate.held.wait()
        site.config = replace(site.config, groups=(pools.group("n1", layout={"3g.40gb": 2}),))
        plan = (await link.apply()).plan
        assert {gpu.node for gpu in plan.gpus} == {"n1"}
        assert [gpu.action for gpu in (await link.plan()).gpus] == ["change"]  # of the new file, taken in or not
        gate.open()
        await until(lambda: site.gres("n1").get("3g.40gb") == 2)
        assert set(site.engine.desk.roster) == {"n1"}
        assert not site.engine.desk.problems


async def test_node_that_comes_into_the_pool_while_a_pass_is_under_way(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link:
        site.slurm.node_list["n3"] = pools.slurm_node("n3")
        site.slurm.reading = gate = Gate()
        await gate.held.wait()
        site.config = replace(site.config, groups=(pools.group(*NODES, "n3"),))
        assert any("n3" in line for line in (await link.apply()).plan.problems)
        gate.open()
        await until(lambda: "n3" in site.engine.desk.roster)
        async with site.agent("n3", pools.SEVEN):
            await until(lambda: site.gres("n3").get("1g.10gb") == 7)


async def test_what_can_not_change_while_it_runs_is_refused(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link:
        site.config = replace(site.config, wait_partition="elsewhere")
        with pytest.raises(ConfigError, match="wait_partition"):
            await link.apply()
        assert site.engine.desk.config.wait_partition == "vgpu-wait"


async def test_fault_of_ours_ends_a_pass_and_not_the_controller(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("n9")

    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        monkeypatch.setattr(engine, "decide", broken)
        await until(lambda: "pass" in site.engine.desk.problems)
        assert any("KeyError: 'n9'" in line for line in (await link.status()).problems)
        monkeypatch.setattr(engine, "decide", decide)
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        await until(lambda: "pass" not in site.engine.desk.problems)


async def test_fault_that_stays_is_for_whoever_starts_the_controller_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("n9")

    monkeypatch.setattr(engine, "FAILURES_MAX", 3)
    monkeypatch.setattr(engine, "RETRY_S", 0.01)
    monkeypatch.setattr(engine, "decide", broken)
    place = ControllerPlace(state_dir=tmp_path, catalogue=tmp_path / "catalogue")
    config = replace(pools.config("n1"), controller=place)
    one = engine.Engine(config, DictSlurm({"n1": pools.slurm_node("n1")}), reload=lambda: config)
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(one.run(), 10)
    assert one.passes == 2


async def test_file_that_is_too_long_is_refused_before_it_waits_for_its_turn(tmp_path: Path) -> None:
    place = ControllerPlace(state_dir=tmp_path, catalogue=tmp_path / "catalogue")
    config = replace(pools.config("n1"), controller=place)
    one = engine.Engine(config, DictSlurm({"n1": pools.slurm_node("n1")}), reload=lambda: config)
    caller = Caller(uid=7, peer="ipv4:10.0.0.1:4")
    async with one._asking.turn(Caller(uid=8, peer="")):
        with pytest.raises(ConfigError, match="longer than"):
            await one.plan(caller, "x" * (FILE_BYTES + 1))
        waiting = [asyncio.create_task(one.explain(caller, 1, None)) for _ in range(CALLS_OF_ONE)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="asked too much"):
            await one.plan(caller, "")
        for task in waiting:
            task.cancel()


async def test_epilogs_of_which_too_many_wait_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "FENCES_MAX", 2)
    place = ControllerPlace(state_dir=tmp_path, catalogue=tmp_path / "catalogue")
    config = replace(pools.config("n1"), controller=place)
    one = engine.Engine(config, DictSlurm({"n1": pools.slurm_node("n1")}), reload=lambda: config)
    asked = [fences.Fence(member=one.desk.roster["n1"], job_id=nth, slices=()) for nth in range(3)]
    for fence in asked:
        one._fences.ask(fence)
    assert [fence.answered for fence in asked] == [False, False, True]
    running = asyncio.create_task(one._fences.run())
    await until(lambda: all(fence.answered for fence in asked))
    running.cancel()


async def test_write_that_was_done_and_not_answered_is_looked_at(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pool wants meanwhile is what it believes to be there: only a new look shows that it is not."""
    monkeypatch.setattr(books, "POLL_S", 3600.0)
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED):
        await until(lambda: site.gres("n1").get("3g.40gb") == 1)

        def lost() -> None:
            site.slurm.jobs = {8: pools.pending(8, "3g.40gb")}
            raise SlurmUnavailable("no answer in 20 s")

        site.slurm.after_write = lost
        site.slurm.jobs[7] = pools.pending(7, "m20")
        await until(lambda: 8 in site.slurm.jobs)
        assert "m20" in site.gres("n1")
        await until(lambda: site.gres("n1").get("3g.40gb") == 1)
        assert "m20" not in site.gres("n1")


async def test_only_the_pools_partitions_are_read(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site:
        await until(lambda: site.slurm.asked_for == ("gpu", "vgpu-wait"))


async def test_slow_queue_is_read_less_often(socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much happens, reading it leaves slurmctld most of its time."""
    monkeypatch.setattr(engine, "POLL_S", 0.01)
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1:
        began: list[float] = []

        async def slow() -> None:
            began.append(time.monotonic())
            await asyncio.sleep(0.05)
            await n1.tell()  # there is always something new

        site.slurm.reading = slow
        await until(lambda: len(began) == 6)
        assert began[-1] - began[1] >= 4 * 0.05 * (1 + engine.EVENT_SHARE)


async def test_slurm_that_was_slow_once_is_not_left_alone_for_long(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waited for a slurmctld on its way up is no sign of a long queue."""
    monkeypatch.setattr(engine, "POLL_MOST_S", 0.2)
    monkeypatch.setattr(engine, "EVENT_MOST_S", 0.1)
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN):
        ended: list[float] = []

        async def starting() -> None:
            await asyncio.sleep(0.0 if ended else 0.6)
            ended.append(time.monotonic())

        site.slurm.reading = starting
        await until(lambda: len(ended) == 2)
        assert ended[1] - ended[0] < 0.6


async def test_slurm_that_did_not_answer_for_long_is_asked_again_soon(socket: Path, tmp_path: Path) -> None:
    """How long a client waited for nobody says nothing of how long an answer takes."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN):
        began: list[float] = []

        async def away() -> None:
            began.append(time.monotonic())
            await asyncio.sleep(0.5)
            raise SlurmUnavailable("squeue: Unable to contact slurm controller")

        site.slurm.reading = away
        await until(lambda: len(began) == 3)
        assert began[-1] - began[-2] < 3 * 0.5


async def test_verdict_does_not_wait_for_a_pass(socket: Path, tmp_path: Path) -> None:
    """While a pass waits for a slow Slurm a 3g slice is freed, and is published for the job that waits for it."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        started_at = site.slurm.start(1, "n1")
        held = await n1.bind(1, "3g.40gb", started_at=started_at)
        site.slurm.jobs[2] = pools.pending(2, "3g.40gb")
        site.slurm.jobs[3] = pools.pending(3, "m40", priority=9)
        await until(lambda: n1.offers[held].ask)
        site.slurm.reading = gate = Gate()
        await gate.held.wait()
        site.slurm.end(1)
        await n1.release(1)
        assert (site.slurm.free("n1", "m40"), site.slurm.free("n1", "3g.40gb")) == (1, 0)
        assert n1.offers[held].gres_class == "m40"
        written = len(site.slurm.written)
        gate.open()
        await two_passes(site)
        assert len(site.slurm.written) == written  # the pass that was under way does not undo it


async def test_good_catalogue_stays_while_no_gpu_is_known(socket: Path, tmp_path: Path) -> None:
    """A new host, or a lost state folder: users submit by what was known until agents have told."""
    slurm = DictSlurm({name: pools.slurm_node(name) for name in NODES})
    async with (
        controller(socket, tmp_path, slurm=slurm) as site,
        site.agent("n1", pools.MIXED),
        site.agent("n2", pools.SEVEN),
    ):
        await until(lambda: _listed(tmp_path) == set(NODES))
    good = (tmp_path / "catalogue").read_text()
    shutil.rmtree(tmp_path / "state")
    now = [time.time()]
    async with controller(socket, tmp_path, slurm=slurm, clock=lambda: now[0]) as site, await site.link() as link:
        await until(lambda: site.engine.passes > 1)
        assert (tmp_path / "catalogue").read_text() == good
        assert any("no agent has told" in line for line in (await link.status()).problems)
        async with site.agent("n1", pools.MIXED):
            await until(lambda: site.engine.desk.shop.offered)
            passes = site.engine.passes
            await until(lambda: site.engine.passes >= passes + 2)
            assert (tmp_path / "catalogue").read_text() == good  # the other one may be back soon
            now[0] += roster.GRACE_S + 1
            await until(lambda: _listed(tmp_path) == {"n1"})


def _listed(folder: Path) -> set[str]:
    """The nodes in the catalogue, if there is one."""
    return {name for path in folder.glob("catalogue") for name in catalogue.parse(path.read_text()).nodes}


async def test_agents_hear_that_the_pool_is_only_observed_and_keep_their_offers(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        before, written = n1.as_offered(), len(site.slurm.written)
        site.config = replace(site.config, mode=Mode.OBSERVE)
        await link.apply()
        await until(lambda: n1.observe)
        site.slurm.jobs[7] = pools.pending(7, "m20")
        await two_passes(site)
        assert (n1.as_offered(), len(site.slurm.written)) == (before, written)
        site.config = replace(site.config, mode=Mode.MANAGE)
        await link.apply()
        await until(lambda: not n1.observe and n1.as_offered().get("m20") == 1)


async def test_agents_hear_whether_gpus_may_be_reset(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1, await site.link() as link:
        await until(lambda: bool(n1.offers))
        assert not n1.reset_gpus
        site.config = replace(site.config, planning=Planning(reset_gpus=True))
        await link.apply()
        await until(lambda: n1.reset_gpus)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_text("x"), lambda path: path.chmod(0o600)])
async def test_catalogue_that_somebody_spoiled_is_written_again(
    socket: Path, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED):
        await until(lambda: _listed(tmp_path) == {"n1"})
        path = tmp_path / "catalogue"
        await until(lambda: path.stat().st_mode & 0o777 == 0o644)
        good = path.read_text()
        harm(path)
        await until(lambda: path.exists() and path.read_text() == good and path.stat().st_mode & 0o777 == 0o644)


async def test_node_whose_agent_can_bind_nothing_takes_no_job_until_it_can(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED) as n1, await site.link() as link:
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        started_at = site.slurm.start(1, "n1")
        await n1.bind(1, "3g.40gb", started_at=started_at)
        n1.fault = "can't write /var/lib/vgpu: No space left on device"
        await n1.tell()
        await until(lambda: site.gres("n1") == {"3g.40gb": 1, "pad": pools.TOTAL - 1})
        await until(lambda: n1.as_offered() == {"": 4})
        (status,) = [node for node in (await link.status()).nodes if node.node == "n1"]
        assert any("No space left" in line for line in status.problems)
        n1.fault = ""
        await n1.tell()
        await until(lambda: site.gres("n1").get("1g.10gb") == 4)


async def test_job_that_does_not_start_on_what_it_claims_leaves_it_to_others(socket: Path, tmp_path: Path) -> None:
    now = [1000.0]
    async with (
        controller(socket, tmp_path, clock=lambda: now[0]) as site,
        site.agent("n1", (("3g.40gb", 0),)) as n1,
    ):
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.offers)
        site.slurm.jobs[1] = pools.pending(1, "m40", priority=9)
        site.slurm.jobs[2] = replace(pools.pending(2, "m20"), uid=1001)
        await until(lambda: site.gres("n1").get("m40") == 1)
        for _ in range(round(loans.CLAIM_S / loans.TICK_S) + 1):
            now[0] += loans.TICK_S
            await two_passes(site)
        await until(lambda: site.gres("n1").get("m20") == 1 and "m40" not in site.gres("n1"))
        assert n1.as_offered() == {"m20": 1}


async def test_an_error_beside_the_passes_ends_no_controller(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[float] = []

    async def fail(_self: Drains) -> None:
        failed.append(1.0)
        raise RuntimeError("a defect")

    monkeypatch.setattr(Drains, "run", fail)
    monkeypatch.setattr(engine, "RETRY_S", 0.01)
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.MIXED), await site.link() as link:
        await until(lambda: len(failed) > 2 and site.gres("n1").get("3g.40gb") == 1)
        assert "drains began anew after RuntimeError: a defect" in (await link.status()).problems


async def test_what_could_not_be_written_is_written_once_it_can_be_and_told_until_then(
    socket: Path, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "state" / "nodes"
    in_the_way.parent.mkdir()
    in_the_way.write_text("")
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), site.agent("n2", pools.SEVEN):
        await until(lambda: "can't write" in site.engine.desk.problems.get("state", ""))
        await two_passes(site)
        assert "state" in site.engine.desk.problems
        in_the_way.unlink()  # nobody says anything meanwhile
        await until(lambda: "state" not in site.engine.desk.problems)
        await until(lambda: {path.name for path in in_the_way.iterdir()} >= {"n1.pb", "n2.pb"})
