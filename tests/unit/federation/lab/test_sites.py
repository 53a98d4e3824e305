"""What is written for two labs is what their daemons take."""

from pathlib import Path

import pytest

from federation.config import load_config
from federation.config_pools import MountedPool
from federation.lab.sites import NODE, Terms, write_sites
from tests.unit.lab.labs import lab


@pytest.mark.parametrize("pool", [True, False])
def test_jobs_of_the_one_may_run_in_the_pool_of_the_other(tmp_path: Path, pool: bool) -> None:
    here, there = (lab(Path("/run/labs") / name, name=name, pool=pool) for name in ("hpc", "there"))
    terms = Terms(user="bob", listen=6001, reached=6002, rules="{gpu: {after_s: 1}}")
    write_sites(tmp_path, here, there, terms)
    hpc, cloud = (load_config(tmp_path / name / "fed.yaml") for name in ("hpc", "cloud"))
    assert hpc.overflow is not None
    assert hpc.overflow.serving(NODE) is not None
    assert hpc.overflow.rules["gpu"].after_s == 1
    assert hpc.overflow.pool_yaml == (here.pool_config if pool else None)
    assert hpc.local.socket == tmp_path / "hpc.sock"
    assert (tmp_path / "hpc/site.pem").exists()
    batch = cloud.pools["batch"].backend
    assert isinstance(batch, MountedPool)
    assert batch.slurm.where.partition == ("gpu" if pool else "")
    assert (batch.slurm.catalogue == there.catalogue) is pool
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o711
