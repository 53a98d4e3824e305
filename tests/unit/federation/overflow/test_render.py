"""What an admin pastes, and what of a running Slurm is found to differ from it."""

from dataclasses import replace
from typing import Any

import pytest

from federation.overflow.checks import check
from federation.overflow.facts import Rule
from federation.overflow.render import PARTS, side_of, texts
from slurm_plugin.pool import GresNames
from slurm_plugin.slurm.facts import File, Live
from slurm_plugin.slurm.gateway import partition_line
from tests.unit.federation.overflow.test_told import CONFIG, node, virtual

GW2 = replace(virtual("g", 1, "gcp/gpu"), gateway="gw2")
OURS = replace(CONFIG, nodes={"a": virtual("a", 2, "aws/gpu"), "b": virtual("b", 1, "aws/cpu"), "g": GW2})
SIDE = side_of(OURS, GresNames())
WATCHED = replace(CONFIG, rules={"gpu": Rule()})


def test_every_part_is_there_and_ends_with_a_newline() -> None:
    made = texts(OURS, SIDE)
    assert tuple(made) == PARTS
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in made.values())


def test_a_gateway_with_several_nodes_has_a_port_for_each() -> None:
    conf = texts(OURS, SIDE)["slurm.conf"].splitlines()
    nodes = [line for line in conf if line.startswith("NodeName=")]
    assert "NodeName=a-[1-2] NodeHostname=gw NodeAddr=gw Port=[6831-6832] " in nodes[0]
    assert "NodeName=b-1 NodeHostname=gw NodeAddr=gw Port=6833 " in nodes[1]
    assert nodes[2].startswith("NodeName=g-1 NodeHostname=gw2 NodeAddr=gw2 CPUs=8 ")
    assert partition_line(SIDE) in conf


def test_what_is_not_a_comment_in_slurm_conf_is_what_slurm_reads() -> None:
    lines = [line for line in texts(OURS, SIDE)["slurm.conf"].splitlines() if not line.startswith("#")]
    names = [*["NodeName"] * 3, "PartitionName", "PrologFlags", "Prolog", "TaskProlog"]
    assert [line.partition("=")[0] for line in lines] == names


def test_a_cluster_without_slices_gets_no_gres() -> None:
    made = texts(OURS, side_of(OURS, None))
    assert "Gres=" not in made["slurm.conf"]
    assert made["gres.conf"] == ""


def test_the_plugin_knows_the_daemons_socket() -> None:
    made = texts(replace(OURS, socket=OURS.socket.with_name("other.sock")), SIDE)
    assert " socket=/run/other.sock " in made["gateway/plugstack.conf"]
    assert (
        made["gateway/plugstack.conf"].splitlines()[-1].startswith("required /usr/libexec/vgpu/vgpu_gateway.so nodes=")
    )


def test_a_gateways_slurmd_has_our_program_for_su() -> None:
    assert "BindReadOnlyPaths=/usr/libexec/vgpu/vgpu-no-su:/bin/su\n" in texts(OURS, SIDE)["gateway/slurmd.conf"]


GOOD = {
    "ClusterName": "hpc",
    "PrologFlags": "Alloc",
    "Prolog": "/p",
    "TaskProlog": "/t",
    "KillWait": "30 sec",
    "JobRequeue": "1",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
}
PARTITIONS = {
    "cloud": {"State": "DOWN", "PriorityTier": "0", "MaxTime": "UNLIMITED", "Nodes": "a-[1-2],g-1"},
    "gpu": {"State": "UP", "PriorityTier": "1", "Nodes": "n[1-4]"},
    "vgpu-wait": {"State": "DOWN", "PriorityTier": "0", "Nodes": "n[1-4]"},
}
NODES = (node("a-1"), node("a-2", "vgpu:m20:3,vgpu:pad:99997,vgpu_mem:100000"), node("g-1"), node("n1", "vgpu:1000"))


def live(config: dict[str, str] | None = None, partitions: Any = None, nodes: Any = NODES, **more: Any) -> Live:
    return Live(config=GOOD | (config or {}), partitions=PARTITIONS | (partitions or {}), nodes=nodes, **more)


def found(known: Live) -> list[str]:
    return [problem.what for problem in check(WATCHED, side_of(WATCHED, GresNames()), known)]


def test_a_slurm_that_has_it_all_is_right() -> None:
    assert found(live()) == []
    assert found(live(partitions={"cloud": {**PARTITIONS["cloud"], "State": "UP", "Nodes": "a-1"}})) == []
    assert found(live({"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerCPU": "100"})) == []
    reconfigured = replace(NODES[1], gres=node("a-2", "vgpu:m20:0,vgpu:pad:0,vgpu_mem:100000").gres)
    assert found(live(nodes=(NODES[0], reconfigured, NODES[2]))) == []


@pytest.mark.parametrize(
    ("known", "what"),
    [
        (live({"ClusterName": "other"}), "this Slurm is cluster other, and fed.yaml says hpc"),
        (live({"PrologFlags": "X11"}), "PrologFlags lacks Alloc"),
        (live({"OverTimeLimit": "UNLIMITED"}), "OverTimeLimit is UNLIMITED"),
        (live({"KillWait": "2 sec"}), "KillWait is 2 s"),
        (live({"JobRequeue": "0"}), "JobRequeue is 0"),
        (live({"RequeueExit": "5,7"}), "RequeueExit is 5,7"),
        (live({"RequeueExitHold": "9"}), "RequeueExitHold is 9"),
        (
            live({"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerCPU": "UNLIMITED"}),
            "one job takes all of a virtual",
        ),
        (live(partitions={"cloud": {**PARTITIONS["cloud"], "PriorityTier": "1"}}), "cloud has PriorityTier=1"),
        (live(partitions={"cloud": {**PARTITIONS["cloud"], "State": "DRAIN"}}), "cloud is DRAIN"),
        (live(partitions={"cloud": {**PARTITIONS["cloud"], "Nodes": "a-1,n1"}}), "that are not virtual: n1"),
        (live(partitions={"all": {"Nodes": "a-1,n1"}}), "partition all has virtual nodes"),
        (live(partitions={"gpu": {"Nodes": "n1", "PriorityTier": "0"}}), "partition gpu has PriorityTier=0"),
        (live(nodes=(NODES[0], NODES[2])), "there is no node a-2"),
        (live(nodes=(*NODES[:2], node("g-1", "vgpu:1000,vgpu_mem:100000"))), "node g-1 has 1000 of vgpu"),
        (live(nodes=(*NODES[:2], node("g-1", state="IDLE+DRAIN", reason="Low RealMemory"))), "Low RealMemory"),
        (live(nodes=(*NODES[:2], node("g-1", state="DOWN*"))), "node g-1 is DOWN*"),
        (live(job_submit=File(path="/etc/slurm/job_submit.lua", text='local CLOUD = ""')), "does not name partition"),
        (
            live(client_conf=File(path="/etc/slurm/slurm.conf", text="PartitionName=cloud Nodes=a-1 State=UP\n")),
            "slurm.conf has partition cloud open",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_not_right_is_found(known: Live, what: str) -> None:
    assert len(problems := found(known)) == 1
    assert what in problems[0]


def test_partitions_and_a_prolog_that_there_are_none_of() -> None:
    bare = Live(config={**GOOD, "Prolog": "/p"}, partitions={}, nodes=NODES)
    assert [one for one in found(bare) if "no partition" in one] == [
        "there is no partition cloud",
        "there is no partition gpu, which fed.yaml names",
        "there is no partition vgpu-wait, which fed.yaml names",
    ]
    without = {name: value for name, value in GOOD.items() if name != "Prolog"}
    assert found(Live(config=without, partitions=PARTITIONS, nodes=NODES))[0].startswith("there is no Prolog")
    without = {name: value for name, value in GOOD.items() if name != "TaskProlog"}
    assert found(Live(config=without, partitions=PARTITIONS, nodes=NODES))[0].startswith("there is no TaskProlog")


def test_the_partition_may_be_named_in_either_way() -> None:
    for text in ('local CLOUD = "cloud" -- x', 'vgpu.cloud = "cloud"', "vgpu.catalogue, vgpu.cloud = C, 'cloud'"):
        assert found(live(job_submit=File(path="/etc/slurm/job_submit.lua", text=text))) == []
