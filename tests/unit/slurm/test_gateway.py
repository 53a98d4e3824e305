"""What Slurm is told of virtual nodes and their gateway."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.slurm import gateway
from slurm_plugin.slurm.gateway import CloudSide, GatewayPaths, VirtualLine

LINES = (
    VirtualLine(names=("aws-1", "aws-2"), gateway="gw1", cpus=4096, memory_mib=4_000_000, ports=(6831, 6832)),
    VirtualLine(names=("gcp-1",), gateway="gw2", cpus=64, memory_mib=1000),
)
SIDE = CloudSide(partition="cloud", lines=LINES)


def test_a_line_is_untyped_and_never_prints_a_letter_for_its_total() -> None:
    assert gateway.node_line(LINES[0], SIDE.gres) == (
        "NodeName=aws-[1-2] NodeHostname=gw1 NodeAddr=gw1 Port=[6831-6832] CPUs=4096 RealMemory=4000000"
        " Gres=vgpu:100000,vgpu_mem:100000 Weight=65000"
    )
    assert gateway.TOTAL % 1024
    assert gateway.node_line(LINES[1], None) == (
        "NodeName=gcp-1 NodeHostname=gw2 NodeAddr=gw2 CPUs=64 RealMemory=1000 Weight=65000"
    )
    assert gateway.gres_conf(SIDE) == (
        "NodeName=aws-[1-2],gcp-1 Name=vgpu Count=100000\nNodeName=aws-[1-2],gcp-1 Name=vgpu_mem Count=100000\n"
    )


@pytest.mark.parametrize(
    ("ports", "text"),
    [((6831,), "6831"), ((6831, 6832, 6833), "[6831-6833]"), ((6831, 6833, 6834), "[6831,6833-6834]")],
)
def test_ports_are_written_as_slurm_reads_them(ports: tuple[int, ...], text: str) -> None:
    line = VirtualLine(names=("a-1",), gateway="g", cpus=1, memory_mib=1, ports=ports)
    assert f" Port={text} " in gateway.node_line(line, None)


def test_the_partition_is_closed_below_all_others_and_free() -> None:
    line = gateway.partition_line(SIDE)
    assert line.startswith("PartitionName=cloud Nodes=aws-[1-2],gcp-1 State=DOWN PriorityTier=0 ")
    assert line.endswith("TRESBillingWeights=CPU=0.0")


def test_the_plugin_is_required_and_told_its_nodes() -> None:
    line = gateway.plugstack_line(("aws-1", "aws-2", "gcp-1"), GatewayPaths())
    assert line == (
        "required /usr/libexec/vgpu/vgpu_gateway.so nodes=aws-,gcp- proxy=/usr/libexec/vgpu/vgpu-proxy"
        " socket=/run/fed/gateway.sock marks=/run/vgpu-gateway\n"
    )


class Gateway:
    """A gateway's files in a folder, with a hook that writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = GatewayPaths(programs=str(folder), socket=str(folder / "s"), marks=str(folder / "marks"))
        self.mark = folder / "marks" / "7"
        self.mark.parent.mkdir()
        self.mark.write_text("ok\n")
        self.door = Path(paths.socket)
        for name, text in (
            ("vgpu-hook", f'#!/bin/sh\necho "$@" > {folder}/called\n'),
            ("prolog", gateway.prolog(paths)),
        ):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def starts(self) -> bool:
        """Does its prolog let a job start? It never fails, and takes the mark away."""
        env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "cloud-1"}
        subprocess.run([self.folder / "prolog"], env=env, check=True, capture_output=True)
        called = self.folder / "called"
        assert not self.mark.exists()
        assert not called.exists() or called.read_text() == "away\n"
        return not called.exists()


@pytest.fixture
def host(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


def test_a_job_starts_on_a_gateway_also_while_no_daemon_and_no_socket_is_there(host: Gateway) -> None:
    assert not host.door.exists()
    assert host.starts()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda host: host.mark.unlink(),
        lambda host: host.mark.write_text(""),
        lambda host: host.mark.write_text("slurmd can run su here\n"),
        lambda host: host.mark.write_text("ok $(touch x) not\n"),
    ],
    ids=["no mark", "an empty mark", "a fault", "no ok"],
)
def test_no_script_of_a_users_starts_on_a_gateway_where_something_is_wrong(
    host: Gateway, spoil: Callable[[Gateway], object]
) -> None:
    spoil(host)
    assert not host.starts()
