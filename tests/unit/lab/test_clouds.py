"""A lab with virtual nodes: each has a slurmd of its own, which alone loads the gateway's plugin."""

from pathlib import Path

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab.daemons import daemons_of
from slurm_plugin.lab.render import slurm_files
from slurm_plugin.lab.site import Lab, LabSpec, Ports, check_spec, from_text, to_text

FOLDER = Path("/run/vgpu-lab/hpc")


def lab(*clouds: str, pool: bool = True) -> Lab:
    spec = LabSpec(nodes=1, clouds=clouds, pool=pool)
    ports = Ports(slurmctld=11001, slurmdbd=11002, controller=11003, slurmd=tuple(range(11010, 11011 + len(clouds))))
    return Lab(spec=spec, folder=FOLDER, hostname="host", ports=ports, slurm_version=(22, 5))


def texts(made: Lab) -> dict[str, str]:
    return {str(file.path.relative_to(FOLDER)): file.text for file in slurm_files(made)}


def test_virtual_nodes_are_lines_of_their_own_in_a_closed_partition() -> None:
    conf = texts(lab("cloud-1", "cloud-2"))["etc/common.conf"]
    assert "NodeName=cloud-2 NodeHostname=host NodeAddr=127.0.0.1 Port=11012 CPUs=4096 " in conf
    assert conf.count("Gres=vgpu:100000,vgpu_mem:100000 ") == 2
    assert "PartitionName=cloud Nodes=cloud-[1-2] State=DOWN PriorityTier=0 " in conf
    assert "PartitionName=gpu Nodes=n1 " in conf
    assert "PartitionName=vgpu-wait Nodes=n1 " in conf


def test_only_their_slurmd_has_the_plugin_and_other_hooks() -> None:
    made = texts(lab("cloud-1"))
    assert {path for path in made if "plugstack" in path} == {
        "etc/plugstack.conf",
        "etc/cloud-1/plugstack.conf",
        "etc/cloud-1/plugstack.conf.d/vgpu.conf",
    }
    assert made["etc/plugstack.conf"] == "optional /run/vgpu-lab/hpc/spank/vgpu_burst.so\n"
    assert made["etc/cloud-1/plugstack.conf"] == "include /run/vgpu-lab/hpc/etc/cloud-1/plugstack.conf.d/*.conf\n"
    assert made["etc/cloud-1/plugstack.conf.d/vgpu.conf"] == (
        "required /run/vgpu-lab/hpc/spank/vgpu_gateway.so nodes=cloud- proxy=/run/vgpu-lab/hpc/spank/vgpu-proxy"
        " socket=/run/vgpu-lab/hpc/run/gateway.sock marks=/run/vgpu-lab/hpc/run/marks\n"
    )
    assert "Prolog=/run/vgpu-lab/hpc/hooks/cloud-1/vgpu-prolog\n" in made["etc/cloud-1/slurm.conf"]
    assert "GetEnvTimeout=0\n" in made["etc/cloud-1/slurm.conf"]
    assert "GetEnvTimeout" not in made["etc/n1/slurm.conf"]


def test_each_has_a_slurmd_and_none_an_agent() -> None:
    names = [daemon.name for daemon in daemons_of(lab("cloud-1"), "python")]
    assert names[-2:] == ["slurmd:n1", "slurmd:cloud-1"]
    assert "agent:cloud-1" not in names
    assert daemons_of(lab("cloud-1"), "python")[-1].door == 11011


def test_a_plain_slurm_can_have_them_too() -> None:
    conf = texts(lab("cloud-1", pool=False))["etc/common.conf"]
    assert "NodeName=cloud-1 " in conf
    assert "Gres=" not in conf
    assert "PrologFlags=Alloc\n" in conf


def test_the_labs_file_keeps_them() -> None:
    made = lab("cloud-1", "cloud-2")
    assert from_text(to_text(made)) == made


@pytest.mark.parametrize("name", ["cloud", "1-1", "a b-1", "cloud-" + "x" * 30 + "-1", "cloud-100", "edge-1"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="virtual nodes"):
        check_spec(LabSpec(clouds=(name,)), FOLDER)
