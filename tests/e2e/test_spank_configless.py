"""A site whose slurmctld hands out one plugstack.conf: it includes a folder of which each host has its own."""

import subprocess

import pytest

from federation.overflow.frames import Stream
from tests.e2e.bare_slurm import NOBODY
from tests.e2e.virtual_node import virtual_node
from tests.integration.spank.daemon import SPANK

pytestmark = pytest.mark.slurm


def test_each_host_loads_the_plugin_that_is_its_own() -> None:
    subprocess.run(["flock", str(SPANK), "make", "-s", "-C", str(SPANK)], check=True)
    with virtual_node(configless=True) as node:
        job = node.submit("", "--burst=always")
        line = node.daemon.accept()
        assert dict(line.welcome().env)[b"_SLURM_SPANK_OPTION_vgpu_burst_burst"] == b"always"
        line.relay(Stream.STDOUT, b"from there")
        line.end(0)
        node.wait_job(job, "COMPLETED")
        assert node.output(job) == "from there"
        assert (node.slurm.folder / f"told-{job}").read_text() == "ok\n"
        ran = node.slurm.run("srun", "-p", "cloud", "touch", f"{node.users}/ran-step", user=NOBODY)
        assert "launch failed" in ran.stderr
        assert node.ran() == set()
        here = node.submit("echo here", partition="plain")
        node.wait_job(here, "COMPLETED")
        assert node.output(here) == "here\n"
