"""What slices a real Slurm has, asked here and behind a login node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.executors.host import MountedHost
from federation.executors.spool import Spool
from federation.executors.ssh_host import SshHost, SshPlace
from federation.executors.ssh_link import SshLink
from slurm_plugin.catalogue import parse
from slurm_plugin.slurm.process import Site
from tests.contract.federation.executors.rig import Rig
from tests.contract.federation.executors.sshd import Sshd
from tests.e2e.bare_slurm import BareSlurm

pytestmark = pytest.mark.slurm
SLICES = "vgpu:pad:984,vgpu:1g.10gb:8,vgpu:2g.20gb:4,vgpu:3g.40gb:4,vgpu_mem:16"


@pytest.fixture
def sliced(slurm: BareSlurm) -> Iterator[None]:
    """n1 has slices, as a pool's controller publishes them."""
    slurm.run("scontrol", "update", "nodename=n1", f"gres={SLICES}")
    yield
    slurm.run("scontrol", "update", "nodename=n1", "gres=vgpu:1000,vgpu_mem:16")


@pytest.mark.parametrize("rig", ["slurm", "ssh"], indirect=True)
async def test_slices_that_slurm_publishes_are_offered_where_no_catalogue_can_be_read(rig: Rig, sliced: None) -> None:
    room = await rig.executor.room()
    free = dict(room.slices)
    assert (free["m10"], free["m20"], free["1g.10gb"]) == (16, 8, 8)
    assert parse(room.catalogue).shapes[0].most["m40"] == 4


@pytest.mark.parametrize("rig", ["slurm", "ssh"], indirect=True)
async def test_a_cluster_without_slices_offers_none(rig: Rig) -> None:
    room = await rig.executor.room()
    assert (room.catalogue, room.slices) == ("", ())


async def test_a_file_of_the_cluster_is_read_whole_or_it_is_not_there(folder: Path, sshd: Sshd) -> None:
    path = folder / "a file"
    ssh = SshHost(SshLink(sshd.login()), SshPlace(copies=Spool(folder / "copies"), users=frozenset()))
    try:
        for host in (MountedHost(Spool(folder / "spool"), Site()), ssh):
            path.unlink(missing_ok=True)
            assert await host.text(path) == ""
            path.write_text("one\ntwo\n")
            assert await host.text(path) == "one\ntwo\n"
    finally:
        await ssh.close()
