"""Pause, resume and the history over the real link: what stops, what goes on, and what is left on disk."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import books, engine
from slurm_plugin.controller.pause import REASON_MAX
from slurm_plugin.errors import RequestError
from slurm_plugin.link.client import Link
from slurm_plugin.planning import Follow, Guarantee, Planning
from slurm_plugin.pool import Mode
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.integration.controller.site import ListAgent, until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

FOLLOW = Planning(follow=Follow.QUEUE, batch_window_s=0.0, hysteresis_s=0.0)


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine, books):
        monkeypatch.setattr(module, "POLL_S", 0.05)


async def ready(site: Site, n1: ListAgent) -> None:
    await until(lambda: site.gres("n1").get("1g.10gb") == 7 and n1.offers)


async def some_passes(site: Site) -> None:
    passes = site.engine.passes
    await until(lambda: site.engine.passes >= passes + 5)


async def told(site: Site, link: Link, *whats: str) -> list[pb.HistoryEntry]:
    """The history, once it has the last of these."""
    path = site.config.controller.state_dir / "history.jsonl"
    await until(lambda: path.exists() and f'"{whats[-1]}"' in path.read_text())
    return [entry for entry in (await link.history()).entries if entry.what in whats]


async def test_while_paused_a_changed_layout_waits_and_its_slices_are_offered(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await ready(site, n1)
        paused = await link.pause(wanted=True, reason="driver update")
        assert (paused.changed, paused.pause.uid, paused.pause.reason) == (True, 0, "driver update")
        assert not (await link.pause(wanted=True, reason="again")).changed
        assert (await link.status()).pause.reason == "driver update"
        site.lay_out({"7g.80gb": 1})
        plan = (await link.apply()).plan
        assert [gpu.action for gpu in plan.gpus] == ["change"]
        assert "re-cutting is paused" in plan.problems[0]
        await some_passes(site)
        assert not n1.steps
        assert site.gres("n1")["1g.10gb"] == 7
        site.slurm.jobs[1] = pools.pending(1, "m10")
        await until(lambda: site.gres("n1").get("m10") == 1)  # offers go on
        del site.slurm.jobs[1]
        assert (await link.pause(wanted=False)).changed
        await until(lambda: n1.layout("GPU-n1-0") == [("7g.80gb", 0)])
        assert not (await link.status()).HasField("pause")
        (change,) = await told(site, link, "changed")
        assert (change.node, change.index, list(change.created)) == ("n1", 0, ["7g.80gb@0"])
        assert len(change.destroyed) == 7


async def test_while_paused_nothing_is_cut_for_the_queue(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await ready(site, n1)
        site.config = replace(site.config, planning=FOLLOW)
        await link.apply()
        await link.pause(wanted=True)
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        await until(lambda: "paused" in site.engine.desk.decision.recuts.why if site.engine.desk.decision else False)
        await some_passes(site)
        assert not n1.steps
        assert site.gres("n1")["1g.10gb"] == 7
        plan = await link.plan()
        assert [gpu.action for gpu in plan.gpus] == ["change"]
        await link.pause(wanted=False)
        await until(lambda: ("3g.40gb", 0) in n1.layout("GPU-n1-0") or ("3g.40gb", 4) in n1.layout("GPU-n1-0"))
        planned, changed = await told(site, link, "planned", "changed")
        assert (planned.what, changed.what) == ("planned", "changed")
        assert list(planned.created) == list(changed.created)
        assert changed.why == "1x3g.40gb for waiting 3g.40gb; 3x1g.10gb idle goes; first job 1"
        await some_passes(site)
        assert len(await told(site, link, "planned", "changed")) == 2  # each is told once, whatever passes follow


async def test_a_pause_outlives_its_controller(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link:
        await link.pause(wanted=True, reason="é\n'\"")
        since = (await link.status()).pause.since
    assert (tmp_path / "state/paused.json").stat().st_mode & 0o777 == 0o600
    async with controller(socket, tmp_path) as site, await site.link() as link:
        pause = (await link.status()).pause
        assert (pause.since, pause.uid, pause.reason) == (since, 0, "é\n'\"")
        await link.pause(wanted=False)
        whats = [entry.what for entry in await told(site, link, "started", "paused", "resumed")]
        assert whats == ["started", "paused", "started", "resumed"]
    async with controller(socket, tmp_path) as site, await site.link() as link:
        assert not (await link.status()).HasField("pause")


async def test_a_pause_that_can_not_be_kept_is_refused(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link:
        with pytest.raises(RequestError, match="characters at the most"):
            await link.pause(wanted=True, reason="x" * (REASON_MAX + 1))
        (tmp_path / "state/paused.json").mkdir(parents=True)
        with pytest.raises(RequestError, match="can't be written"):
            await link.pause(wanted=True)
        assert not (await link.status()).HasField("pause")


async def test_a_step_that_fails_is_in_the_history_with_its_error(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await ready(site, n1)
        n1.refuse = "In use by another client"
        site.lay_out({"7g.80gb": 1})
        await link.apply()
        failed = (await told(site, link, "failed"))[0]
        assert (failed.error, failed.gpu, list(failed.created)) == (n1.refuse, "GPU-n1-0", ["7g.80gb@0"])


async def test_how_a_guarantee_is_kept_is_in_the_history(socket: Path, tmp_path: Path) -> None:
    """It lacks two until they are cut, is whole, and then has never so little that it would lack one."""
    guarantee = Guarantee(gres_class="3g.40gb", count=2)
    async with controller(socket, tmp_path) as site, await site.link() as link:
        site.config = replace(site.config, planning=replace(FOLLOW, guarantees=(guarantee,)))
        async with site.agent("n1", pools.SEVEN) as n1, site.agent("n2", pools.SEVEN) as n2:
            await until(lambda: n1.as_offered() == {"1g.10gb": 7} and n2.as_offered() == {"1g.10gb": 7})
            await link.apply()
            await until(lambda: sum(n.as_offered().get("3g.40gb", 0) for n in (n1, n2)) == 2)
            await until(lambda: '"have":2' in (tmp_path / "state/history.jsonl").read_text())
            entries = await told(site, link, "guarantee")
    assert [(entry.guarantee, entry.at_least) for entry in entries] == [(guarantee.text, 2)] * len(entries)
    assert (entries[0].have, entries[0].why) == (0, "lacks 2")
    assert (entries[-1].have, entries[-1].why) == (2, "0 to spare")


async def test_a_plan_for_another_policy_is_made_for_the_queue_as_it_is(socket: Path, tmp_path: Path) -> None:
    """At once, with its own guarantees, and without a trace in what the controller does."""
    policy = {
        "version": 1,
        "pool": "hpc",
        "partitions": ["gpu"],
        "nodes": [{"hosts": "n[1-2]"}],
        "planning": {
            "follow": "queue",
            "batch_window_s": 60,
            "guarantees": {"class 2g.20gb": "never fewer than 1 idle"},
        },
    }
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, site.agent("n2", pools.SEVEN):
        await ready(site, n1)
        await until(lambda: site.gres("n2").get("1g.10gb") == 7)
        site.slurm.jobs[1] = pools.pending(1, "7g.80gb")
        site.slurm.jobs[2] = replace(pools.pending(2, "7g.80gb"), submitted_at=1)
        await until(lambda: len(site.engine.desk.books.jobs) == 2)
        async with await site.link() as link:
            plan = await link.plan(json.dumps(policy))
        assert sorted(gpu.action for gpu in plan.gpus) == ["change", "change"]
        created = sorted(shape.profile for gpu in plan.gpus for shape in gpu.create)
        assert created[0] == "2g.20gb"
        assert created[-1] == "7g.80gb"
        assert any("never fewer than 1 idle" in gpu.why for gpu in plan.gpus)
        assert [line for line in plan.waiting if line.startswith("job")]
        assert plan.why
        await some_passes(site)
        assert not n1.steps
        assert site.engine.desk.decision is not None
        assert site.engine.desk.decision.recuts.vain is None


async def test_a_pool_that_is_only_observed_plans_for_the_queue_too(socket: Path, tmp_path: Path) -> None:
    planning = {"follow": "queue", "batch_window_s": 60}
    policy = {"version": 1, "pool": "hpc", "partitions": ["gpu"], "nodes": [{"hosts": "n1"}], "planning": planning}
    async with controller(socket, tmp_path, mode=Mode.OBSERVE) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.engine.desk.decision and n1.offers is not None)
        await until(lambda: site.engine.desk.roster["n1"].gpus)
        site.slurm.jobs[1] = pools.pending(1, "7g.80gb")
        await until(lambda: site.engine.desk.books.jobs)
        async with await site.link() as link:
            plan = await link.plan(json.dumps({**policy, "policy": {"mode": "observe"}}))
        assert [(gpu.action, gpu.why) for gpu in plan.gpus] == [
            ("change", "1x7g.80gb for waiting 7g.80gb; 7x1g.10gb idle goes; first job 1")
        ]
        assert not n1.steps
        assert not site.slurm.written


async def test_nodes_without_a_controller_still_start_jobs_on_what_it_left(socket: Path, tmp_path: Path) -> None:
    """What it published stays, also where layouts follow the queue, and so do the agents' offers."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await ready(site, n1)
        site.config = replace(site.config, planning=FOLLOW)
        await link.apply()
        site.slurm.jobs[1] = pools.pending(1, "3g.40gb")
        await until(lambda: site.gres("n1").get("3g.40gb") == 1 and n1.as_offered().get("3g.40gb") == 1)
        slurm, written = site.slurm, len(site.slurm.written)
    assert slurm.free("n1", "3g.40gb") == 1
    slurm.start(1, "n1")
    assert n1.as_offered()["3g.40gb"] == 1  # it binds without asking anybody
    assert len(slurm.written) == written
