"""Each fault of a pool is found, named once, and comes with a line to paste; a right pool has none."""

from collections.abc import Callable

import pytest

from slurm_plugin.catalogue import Catalogue, Class, Kind, Shape
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.doctor import Report, catalogue_findings, pool_findings, report_lines
from slurm_plugin.findings import Finding, lasting
from slurm_plugin.pool import GresNames
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from tests.unit.cli.pools import instance, status

NOW = 2000.0
Change = Callable[[pool_pb2.PoolStatus], None]


def found(pool: pool_pb2.PoolStatus) -> dict[str, Finding]:
    findings = pool_findings(pool_view(pool), GresNames(), NOW)
    assert len({f.code for f in findings}) == len(findings), findings
    return {finding.code: finding for finding in findings}


def node(pool: pool_pb2.PoolStatus) -> pool_pb2.NodeStatus:
    return pool.nodes[0]


def gpu(pool: pool_pb2.PoolStatus) -> pool_pb2.Gpu:
    return pool.nodes[0].inventory.gpus[0]


def test_a_right_pool_has_no_finding() -> None:
    assert found(status()) == {}


def _gres(text: str) -> Change:
    return lambda pool: setattr(node(pool), "slurm_gres", text)


def _used(text: str) -> Change:
    return lambda pool: setattr(node(pool), "slurm_gres_used", text)


def _add(piece: pool_pb2.Instance) -> Change:
    return lambda pool: gpu(pool).instances.append(piece)


def _grant(**facts: object) -> Change:
    return lambda pool: node(pool).inventory.grants.append(pool_pb2.Grant(started_at=1, uid=1, **facts))


def _empty(pool: pool_pb2.PoolStatus) -> None:
    bare = pool_pb2.Gpu(uuid="GPU-2", index=1, mig="enabled")
    node(pool).inventory.gpus.append(bare)


@pytest.mark.parametrize(
    ("code", "change", "says"),
    [
        ("controller", lambda p: p.problems.append("wait partition is UP"), "wait partition is UP"),
        ("node", lambda p: node(p).problems.append("job 9 is stuck"), "n1: job 9 is stuck"),
        ("drained", lambda p: setattr(node(p), "slurm_state", "IDLE+DRAIN"), "IDLE+DRAIN"),
        ("agent-away", lambda p: setattr(node(p), "agent_connected", False), "n1"),
        ("unpublished", _gres("vgpu:1000,vgpu_mem:8"), "no class"),
        ("over-published", _gres("vgpu:m40:1,vgpu:m10:2,vgpu:pad:997"), "m10: 2 published, 0 used, 1 idle"),
        ("over-published", _gres("vgpu:m40:1,vgpu:m10:1,vgpu:q4:1,vgpu:pad:997"), "q4: 1 published, 0 used, 0 idle"),
        ("under-published", _gres("vgpu:m40:1,vgpu:pad:999"), "m10: 0 published, 0 used, 1 idle"),
        ("below-used", _used("vgpu:m40:2"), "m40: 1 published, 2 used"),
        ("gpu-fault", lambda p: setattr(gpu(p), "fault", "Xid 79"), "n1 GPU 0: Xid 79"),
        ("empty-gpu", _empty, "n1 GPU 1"),
        ("half-made", _add(instance("1g.10gb", 6, 1, 13, ci=-1)), "1g.10gb at 6 (GPU instance 13)"),
        ("foreign-instance", _add(instance("1g.10gb", 6, 1, 13, uuid="MIG-x", foreign=True)), "1g.10gb at 6"),
        (
            "double-grant",
            _grant(job_id=14, gres_class="m40", count=1, slices=["MIG-a"]),
            "MIG-a is held by jobs 12, 14",
        ),
        ("lost-slice", _grant(job_id=14, gres_class="m40", count=1, slices=["MIG-z"]), "MIG-z"),
        ("short-grant", _grant(job_id=14, gres_class="m40", count=1), "asked 1 and holds 0"),
        (
            "stuck-prolog",
            lambda p: node(p).inventory.waiting.append(
                pool_pb2.Waiting(job_id=9, gres_class="m20", count=1, since=1900)
            ),
            "job 9 has waited 100 s",
        ),
    ],
)
def test_a_fault_is_found(code: str, change: Change, says: str) -> None:
    pool = status()
    change(pool)
    findings = found(pool)
    assert set(findings) == {code}
    assert says in findings[code].what
    assert findings[code].why
    assert findings[code].paste


@pytest.mark.parametrize("mode", ["disabled", "pending"])
def test_a_gpu_with_mig_off_is_found_only_when_it_is_the_pools(mode: str) -> None:
    pool = status()
    node(pool).inventory.gpus.append(pool_pb2.Gpu(uuid="GPU-2", index=1, mig=mode))
    assert set(found(pool)) == {"mig-off"}
    assert pool_findings(pool_view(pool), GresNames(), NOW, lambda _node, index: index == 0) == ()


def test_a_slice_of_a_job_that_is_ending_may_be_published_already() -> None:
    """GresUsed falls when the epilog starts, and the grant goes when it ends."""
    pool = status()
    node(pool).slurm_gres_used = ""
    assert found(pool) == {}


def test_jobs_counted_untyped_after_a_restart_of_slurmctld_are_no_fault() -> None:
    pool = status()
    node(pool).slurm_gres = "vgpu:1,vgpu:m10:1,vgpu:pad:998,vgpu_mem:8"
    node(pool).slurm_gres_used = "vgpu:1,vgpu_mem:4"
    assert found(pool) == {}


def test_a_prolog_that_waits_its_time_is_no_fault() -> None:
    pool = status()
    node(pool).inventory.waiting.append(pool_pb2.Waiting(job_id=9, gres_class="m20", count=1, since=NOW - 9))
    assert found(pool) == {}


def test_counts_must_be_wrong_twice_and_other_faults_once() -> None:
    def finding(code: str, what: str) -> Finding:
        return Finding(code=code, what=what, why="w", paste="p")

    passing = finding("over-published", "n1 class m10: 2 published, 0 used, 1 idle")
    again = finding("over-published", "n1 class m10: 3 published, 0 used, 1 idle")
    other = finding("over-published", "n2 class m10: 2 published, 0 used, 1 idle")
    fault = finding("gpu-fault", "n1 GPU 0: Xid 79")
    assert lasting((passing,), (again, other, fault)) == (again, fault)
    assert lasting((passing, fault), ()) == ()


def test_the_catalogue_is_compared_with_what_is_there() -> None:
    catalogue = Catalogue(
        pool="hpc",
        partitions=(("gpu", "vgpu-wait"),),
        classes=(
            Class(name="m10", kind=Kind.MEMORY, param=10, weight=1, profiles=("1g.10gb",)),
            Class(name="m20", kind=Kind.MEMORY, param=20, weight=2, profiles=("2g.20gb",)),
        ),
        shapes=(Shape(id=1, cpus=1, memory_mib=1, most={}),),
        nodes={"n1": 1},
    )
    pool = status()
    assert catalogue_findings(catalogue, pool_view(pool)) == ()
    node(pool).offers[1].gres_class = "m20"
    node(pool).node = "n2"
    findings = catalogue_findings(catalogue, pool_view(pool))
    assert [finding.code for finding in findings] == ["not-in-catalogue", "wrong-offer"]


def test_a_report_has_the_line_to_paste_on_a_line_of_its_own() -> None:
    finding = Finding(code="half-made", what="n1\x1b[2J", why="memory is taken", paste="one\ntwo")
    lines = report_lines(Report(checked=("controller",), findings=(finding,)))
    assert lines == [
        "checked: controller",
        "",
        r"[half-made] n1\x1b[2J",
        "  why:   memory is taken",
        "  paste: one",
        "         two",
        "",
        "1 finding",
    ]
    assert report_lines(Report(checked=("controller",), findings=()))[-1] == "nothing is wrong"
