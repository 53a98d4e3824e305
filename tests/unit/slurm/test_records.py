import pytest

from slurm_plugin.errors import SlurmError
from slurm_plugin.slurm.records import parse_config, parse_nodes, parse_partitions

NODE = (
    "NodeName=n1 Arch=x86_64 CPUAlloc=2 CPUEfctv=60 CPUTot=64 Gres=gpu:h100:4(S:0-1),vgpu:1K "
    "GresUsed=gpu:h100:0(IDX:N/A),vgpu:2 OS=Linux 6.1.0 #1 SMP  RealMemory=512000 State=MIXED+DRAIN "
    "Partitions=gpu,vgpu-wait  SlurmdStartTime=1790000000 "
)


def test_a_node() -> None:
    (node,) = parse_nodes(NODE)
    assert (node.name, node.state, node.cpus, node.cpus_used, node.memory_mib) == ("n1", "MIXED+DRAIN", 60, 2, 512000)
    assert [(i.name, i.type, i.count) for i in node.gres] == [("gpu", "h100", 4), ("vgpu", "", 1024)]
    assert [i.count for i in node.gres_used] == [0, 2]
    assert node.partitions == ("gpu", "vgpu-wait")
    assert node.slurmd_started_at == 1790000000


@pytest.mark.parametrize(
    "text", ["fan is bad", "x Gres=vgpu:9 State=IDLE", "x\nNodeName n2", "x\n  NodeName=n9 State=DOWN", "a=b"]
)
def test_no_admins_text_changes_a_field(text: str) -> None:
    (plain,) = parse_nodes(NODE)
    for key in ("Reason", "Comment", "Extra"):
        (node,) = parse_nodes(f"{NODE}{key}={text}\n")
        assert (node.name, node.gres, node.state, node.partitions) == (
            plain.name,
            plain.gres,
            plain.state,
            plain.partitions,
        )


def test_a_forged_record_is_not_believed() -> None:
    with pytest.raises(SlurmError, match="two records of n1"):
        parse_nodes(f"{NODE}Reason=x\n{NODE}")


@pytest.mark.parametrize("text", ["NodeName=n1 State=IDLE", NODE.replace("CPUAlloc=2", "CPUAlloc=two")])
def test_half_a_record_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError):
        parse_nodes(text)


def test_an_unknown_start_is_zero() -> None:
    (node,) = parse_nodes(NODE.replace("SlurmdStartTime=1790000000", "SlurmdStartTime=None"))
    assert node.slurmd_started_at == 0


def test_partitions() -> None:
    gpu = "PartitionName=gpu AllowQos=ALL QoS=N/A Nodes=n[1-2] State=UP Hidden=NO"
    text = f"{gpu}\nPartitionName=w Nodes=n1 State=DOWN Hidden=YES\n"
    assert parse_partitions(text)["gpu"] == {
        "AllowQos": "ALL",
        "QoS": "N/A",
        "Nodes": "n[1-2]",
        "State": "UP",
        "Hidden": "NO",
    }
    assert parse_partitions(text)["w"]["Hidden"] == "YES"


def test_configuration_of_both_forms() -> None:
    text = (
        "Configuration data as of 1790000000\n"
        "DefMemPerCPU            = 100\nProlog                  = (null)\nEpilog                  = /a/*\n"
        "Prolog[0]               = /etc/slurm/prolog.d/*\nProlog[1]               = /x y\nLaunchParameters        = \n"
        "Slurmctld(primary) at vm is UP\n"
    )
    assert parse_config(text) == {"DefMemPerCPU": "100", "Epilog": "/a/*", "Prolog": "/etc/slurm/prolog.d/*,/x y"}
