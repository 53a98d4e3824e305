"""What Slurm is told of its virtual nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.model.messages import Room
from federation.overflow.told import Changes, Far, Near, decide
from federation.policy.choose import Pool
from slurm_plugin.catalogue import render
from slurm_plugin.model import RunKey
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem, JobRun, QueuedJob, SlurmNode
from slurm_plugin.slurm.gres import parse_gres
from slurm_plugin.slurm.process import Site
from tests.cases.pool import pool as example

GRES = GresNames(total=100_000)
BASE = "vgpu:100000,vgpu_mem:100000"
ROOM = Room(pool="gpu", catalogue=render(example()), slices=(("m20", 2),), free_jobs=10, free_cpus=8)
AWS, GCP = Pool(site="aws", room=ROOM), Pool(site="gcp", room=ROOM)
BOTH = {"aws/gpu": AWS, "gcp/gpu": GCP}
CLOSED = {"State": "DOWN", "Nodes": "a-[1-2],g-1"}
OPEN = {"State": "UP", "Nodes": "a-[1-2],g-1"}


def virtual(prefix: str, count: int, pool: str) -> VirtualNodes:
    return VirtualNodes(
        prefix=prefix,
        count=count,
        pool=pool,
        gateway="gw",
        cpus=8,
        memory_mib=1000,
        most_jobs=100,
        shared_files=False,
    )


CONFIG = OverflowConfig(
    cluster="hpc",
    slurm=Site(),
    socket=Path("/run/s"),
    partition="cloud",
    wait_partition="vgpu-wait",
    longest_wait_s=60,
    nodes={"a": virtual("a", 2, "aws/gpu"), "g": virtual("g", 1, "gcp/gpu")},
    rules={},
    pool_yaml=None,
)


def node(name: str, gres: str = BASE, used: str = "", *, state: str = "IDLE", **more: Any) -> SlurmNode:
    return SlurmNode(
        name=name,
        state=state,
        gres=parse_gres(gres),
        gres_used=parse_gres(used),
        cpus=8,
        cpus_used=0,
        memory_mib=1000,
        partitions=("cloud",),
        slurmd_started_at=1,
        **{"reason": "", **more},
    )


def waits(job_id: int, gres_class: str = "m20", **more: Any) -> QueuedJob:
    facts: dict[str, Any] = {
        "uid": 1000,
        "priority": 1,
        "state": "PENDING",
        "reason": "PartitionDown",
        "nodes": 1,
        "tasks": 1,
        "partitions": ("gpu", "vgpu-wait", "cloud"),
        "wanted_nodes": (),
        "on_nodes": (),
        "cpus": 1,
        "started_at": 0,
        "eligible": True,
    }
    return QueuedJob(job_id=job_id, gres=(GresItem(name="vgpu", type=gres_class, count=1),), **facts | more)


def runs(job_id: int, host: str = "a-1", gres: str = "vgpu:m20:1") -> JobRun:
    key = RunKey(job_id=job_id, started_at=5, uid=1000)
    return JobRun(key=key, state="RUNNING", gres=parse_gres(gres), batch=True, requeue=True, batch_host=host)


def near(*nodes: SlurmNode, partition: dict[str, str] = OPEN, **more: Any) -> Near:
    known = {one.name: one for one in (node("a-1"), node("a-2"), node("g-1"), *nodes)}
    return Near(nodes=known, partition=partition, **more)


def told(known: Near, far: Far | None = None, *, draining: bool = False) -> Changes:
    return decide(CONFIG, GRES, known, far or Far(pools=BOTH), draining=draining)


def offers(changes: Changes, name: str) -> dict[str, int]:
    return {one.type: one.count for one in parse_gres(changes.gres.get(name, "")) if one.name == "vgpu"}


def test_a_closed_partition_opens_when_a_pool_takes_jobs_and_what_waits_is_offered() -> None:
    changes = told(near(partition=CLOSED, waiting=(waits(1), waits(2), waits(3))))
    assert (changes.partition, changes.opens) == ({"State": "UP"}, True)
    assert offers(changes, "a-1") == {"m20": 1, "pad": 99_999}
    assert offers(changes, "a-2") == {"m20": 1, "pad": 99_999}
    assert offers(changes, "g-1") == {"m20": 2, "pad": 99_998}
    assert changes.comments == {}, "a node that takes jobs needs no comment"


def test_a_partition_opens_without_the_nodes_that_have_only_just_registered() -> None:
    changes = told(near(partition=CLOSED, unsettled={"a-2", "g-1"}, waiting=(waits(1),)))
    assert changes.partition == {"State": "UP", "Nodes": "a-1"}
    assert told(near(partition=CLOSED, unsettled={"a-1", "a-2", "g-1"})).partition == {}


def test_the_total_is_constant_and_the_rest_of_the_gres_comes_back() -> None:
    changes = told(near(node("a-1", "gpu:h100:2,vgpu:100000,vgpu_mem:100000"), waiting=(waits(1),)))
    assert changes.gres["a-1"] == "gpu:h100:2,vgpu:m20:1,vgpu:pad:99999,vgpu_mem:100000"


def test_after_a_reconfigure_the_older_slurm_shows_no_total_and_it_stays_what_it_is() -> None:
    changes = told(near(node("g-1", "vgpu:m20:0,vgpu:pad:0,vgpu_mem:100000"), waiting=(waits(1),)))
    assert offers(changes, "g-1") == {"m20": 1, "pad": 99_999}


def test_a_peer_that_is_away_takes_its_nodes_to_zero_and_says_so_without_a_drain() -> None:
    known = near(
        node("a-1", "vgpu:m20:3,vgpu:pad:99997,vgpu_mem:100000", "vgpu:m20:2"),
        running=(runs(1), runs(2)),
        waiting=(waits(3),),
    )
    far = Far(pools={**BOTH, "aws/gpu": replace(AWS, linked=False)}, open={1: "aws/gpu", 2: "aws/gpu"})
    changes = told(known, far)
    assert offers(changes, "a-1") == {"m20": 2, "pad": 99_998}, "what runs goes on"
    assert changes.comments == dict.fromkeys(("a-1", "a-2"), "fed: aws/gpu: no link to aws")
    assert (changes.partition, changes.opens) == ({"Nodes": "g-1"}, False)


def test_nodes_come_back_into_an_open_partition() -> None:
    changes = told(near(partition={"State": "UP", "Nodes": "g-1"}))
    assert (changes.partition, changes.opens) == ({"Nodes": "a-[1-2],g-1"}, True)


def test_the_partition_is_closed_when_nobody_takes_jobs() -> None:
    away = Far(pools={name: replace(pool, linked=False) for name, pool in BOTH.items()})
    assert told(near(), away).partition == {"State": "DOWN"}
    assert told(near(partition=CLOSED), away).partition == {}
    assert told(near(), draining=True).partition == {"State": "DOWN"}
    assert set(told(near(), draining=True).comments.values()) == {
        "fed: aws/gpu: this site is draining",
        "fed: gcp/gpu: this site is draining",
    }


@pytest.mark.parametrize("state", ["DRAIN", "INACTIVE"])
def test_what_an_admin_has_closed_stays_so(state: str) -> None:
    assert told(near(partition={**CLOSED, "State": state})).partition == {}
    assert told(near(partition={**OPEN, "State": state}), draining=True).partition == {}


def test_a_comment_of_an_admins_is_left_alone() -> None:
    known = near(node("a-1", comment="rack 7"), node("a-2", state="DOWN*"))
    assert told(known, Far(pools={"gcp/gpu": GCP})).comments == {"a-2": "fed: aws/gpu: its site does not tell of it"}


def test_a_comment_is_told_once_and_taken_back() -> None:
    away = Far(pools={"gcp/gpu": GCP})
    said = "fed: aws/gpu: its site does not tell of it"
    assert told(near(node("a-1", comment=said)), away).comments == {"a-2": said}
    assert told(near(node("a-1", comment=said))).comments == {"a-1": ""}


def test_another_sites_words_forge_nothing() -> None:
    evil = replace(AWS, room=replace(ROOM, free_jobs=0, why="x\nNodeName=n1 State=DOWN [y]" + "z" * 500))
    (comment,) = set(told(near(), Far(pools={"aws/gpu": evil, "gcp/gpu": GCP})).comments.values())
    assert comment.startswith("fed: aws/gpu: x NodeName n1 State DOWN  y z")
    assert len(comment) < 170
    assert not set("\n=[]") & set(comment)


def test_a_node_that_is_down_offers_nothing_and_the_other_one_all() -> None:
    changes = told(near(node("a-1", state="DOWN*"), waiting=(waits(1), waits(2))))
    assert offers(changes, "a-1") in ({}, {"pad": 100_000})
    assert offers(changes, "a-2") == {"m20": 2, "pad": 99_998}


def test_a_job_that_lost_its_gateway_comes_back_whatever_its_pool_takes() -> None:
    away = Far(pools={}, open={7: "aws/gpu", 8: "aws/gpu"})
    changes = told(near(partition=CLOSED, running=(runs(8),), waiting=(waits(7, eligible=False), waits(9))), away)
    assert offers(changes, "a-1") == {"m20": 1, "pad": 99_999}
    assert changes.partition == {"Nodes": "a-[1-2]", "State": "UP"}
    assert told(near(running=(runs(7), runs(8))), away).partition == {"State": "DOWN"}


def test_jobs_that_nobody_can_start_make_no_offer() -> None:
    held = (waits(1, eligible=False), waits(2, nodes=2), waits(3, on_nodes=("g-1",), state="RUNNING"))
    assert all(offers(told(near(waiting=held)), name) == {"pad": 100_000} for name in ("a-1", "a-2", "g-1"))


def test_a_cluster_without_slices_has_its_partition_opened_and_no_counts() -> None:
    changes = told(near(node("a-1", ""), node("a-2", ""), node("g-1", ""), partition=CLOSED))
    assert (changes.gres, changes.partition) == ({}, {"State": "UP"})


def test_what_has_been_told_is_not_told_again() -> None:
    settled = near(
        node("a-1", "vgpu:m20:1,vgpu:pad:99999,vgpu_mem:100000"),
        node("a-2", "vgpu:pad:100000,vgpu_mem:100000"),
        node("g-1", "vgpu:m20:1,vgpu:pad:99999,vgpu_mem:100000"),
        waiting=(waits(1),),
    )
    assert told(settled) == Changes()


@given(
    used=some.dictionaries(some.sampled_from(("m20", "m40", "")), some.integers(0, 50)),
    waiting=some.integers(0, 30),
    linked=some.booleans(),
)
def test_counts_are_never_below_use_and_their_sum_never_changes(
    used: dict[str, int], waiting: int, linked: bool
) -> None:
    texts = ",".join(f"vgpu:{name}:{count}" if name else f"vgpu:{count}" for name, count in used.items() if count)
    known = near(node("a-1", BASE, texts), waiting=tuple(waits(nth) for nth in range(1, waiting + 1)))
    changes = told(known, Far(pools={"aws/gpu": replace(AWS, linked=linked)}))
    counts = offers(changes, "a-1")
    assert sum(counts.values()) == 100_000
    assert all(counts.get(name, 0) >= count for name, count in used.items() if name)
