"""Each fault of a pool is found, named once, and comes with a line to paste; a right pool has none."""

from collections.abc import Callable

import pytest

from slurm_plugin.catalogue import Catalogue, Class, Kind, Shape
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.doctor import Report, catalogue_findings, pool_findings, report_lines
from slurm_plugin.findings import Finding, lasting
from slurm_plugin.pool import GresNames
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from tests.unit.cli.pools import status

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


@pytest.mark.parametrize(
    ("gres", "says"),
    [
        ("vgpu:m40:1,vgpu:m10:2,vgpu:pad:997", "m10: 2 published, 0 used, 1 idle"),
        ("vgpu:m40:1,vgpu:m10:1,vgpu:q4:1,vgpu:pad:997", "q4: 1 published, 0 used, 0 idle"),
    ],
)
def test_more_published_than_idle_is_told_in_numbers(gres: str, says: str) -> None:
    pool = status()
    node(pool).slurm_gres = gres
    assert says in found(pool)["over-published"].what


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


def test_a_slice_that_a_starting_job_has_yet_to_take_is_not_unused() -> None:
    """GresUsed rises when the job starts, and the grant is made by its prolog."""
    pool = status()
    node(pool).slurm_gres_used = "vgpu:m40:1,vgpu:m10:1"
    assert found(pool) == {}


def test_jobs_counted_untyped_after_a_restart_of_slurmctld_are_no_fault() -> None:
    pool = status()
    node(pool).slurm_gres = "vgpu:1,vgpu:m10:1,vgpu:pad:998,vgpu_mem:8"
    node(pool).slurm_gres_used = "vgpu:1,vgpu_mem:4"
    assert found(pool) == {}


@pytest.mark.parametrize("state", ["DOWN", "DOWN*+DRAIN", "IDLE*", "UNKNOWN", "IDLE+NOT_RESPONDING", "FAILING"])
def test_a_node_on_which_nothing_starts_is_found_once(state: str) -> None:
    pool = status()
    node(pool).slurm_state = state
    assert set(found(pool)) == {"drained" if "DRAIN" in state else "down"}


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


@pytest.mark.parametrize(
    ("fault", "todo"),
    [
        ("quarantined: held by pid 812 (nv-hostengine, nvidia-dcgm.service)", "systemctl stop nvidia-dcgm.service"),
        ("quarantined: held by pid 812 (python)", "kill 812 && vgpu apply"),
        ("quarantined: 1g.10gb at 0: in use", "nvidia-smi --gpu-reset -i 0"),
        ("reading it: GPU is lost (NVML 15)", "scontrol update nodename=n1 state=drain reason='GPU 0 is lost'"),
        ("Xid 63", "nvidia-smi -q -i 0"),
        # A process chooses its own name, and jobs end with slurmd.
        ("quarantined: in use (held by pid 812 (python3, slurmd.service); stop it)", "ssh n1 kill 812 &&"),
        ("quarantined: in use (held by pid 812 (munge.service, alice); stop it)", "ssh n1 kill 812 &&"),
        ("quarantined: in use (held by pid 812 (GPU is lost, alice); stop it)", "ssh n1 kill 812 &&"),
        ("quarantined: in use (held by pid 812 ((NVML 15), alice); stop it)", "ssh n1 kill 812 &&"),
    ],
)
def test_a_gpu_out_of_use_is_told_with_its_jobs_and_what_to_do(fault: str, todo: str) -> None:
    pool = status()
    pool.nodes[0].inventory.gpus[0].fault = fault
    (finding,) = [one for one in pool_findings(pool_view(pool), GresNames(), 2000.0) if one.code == "gpu-fault"]
    assert finding.what.endswith(f"{fault} (job 12 has slices there)")
    assert todo in finding.paste


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("", "ssh n1 'nvidia-smi -i 1 -mig 1 && nvidia-smi --gpu-reset -i 1'"),
        (
            "quarantined: GPU 1 has to be reset to enter MIG mode, and planning.reset_gpus does not allow it",
            "reset_gpus",
        ),
        (
            "quarantined: it has to be reset to enter MIG mode, and a virtual machine can't reset it",
            "reboot this virtual",
        ),
        (
            "quarantined: it has to be reset to enter MIG mode, and is in use (held by pid 812 (python3, alice))",
            "kill 812",
        ),
        (
            "quarantined: it has to be reset to enter MIG mode, and is in use"
            " (held by pid 812 (virtual machine, alice))",
            "kill 812",
        ),
        ("quarantined: MIG mode is still not in force (stop what uses the GPU, or reboot)", "scontrol reboot ASAP n1"),
    ],
)
def test_what_brings_a_gpu_into_mig_mode_is_told_once(fault: str, line: str) -> None:
    pool = status()
    node(pool).inventory.gpus.append(pool_pb2.Gpu(uuid="GPU-2", index=1, mig="disabled", fault=fault))
    told = found(pool)
    assert set(told) == {"mig-off"}
    assert fault in told["mig-off"].what
    assert line in told["mig-off"].paste


def test_a_gpu_that_is_lost_is_not_told_to_be_out_of_mig_mode() -> None:
    pool = status()
    node(pool).inventory.gpus.append(pool_pb2.Gpu(uuid="GPU-2", index=1, mig="disabled", fault="GPU is lost"))
    assert set(found(pool)) == {"gpu-fault"}
