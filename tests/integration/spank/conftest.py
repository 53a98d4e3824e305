import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.spank.daemon import SPANK, Job


@pytest.fixture(scope="session")
def built() -> Path:
    """Everything, and the proxy once more with every read out of bounds and every undefined operation fatal."""
    lock = ("flock", str(SPANK))  # files of tests run side by side, and make knows nothing of the other one
    subprocess.run([*lock, "make", "-s", "-C", str(SPANK), "all", "asan"], check=True)
    return SPANK / "build"


@pytest.fixture
def job(tmp_path: Path, built: Path) -> Iterator[Job]:
    job = Job(tmp_path, built / "vgpu-proxy-asan")
    yield job
    job.close()


@pytest.fixture
def plain_job(tmp_path: Path, built: Path) -> Iterator[Job]:
    """With the proxy as it is installed."""
    job = Job(tmp_path, built / "vgpu-proxy")
    yield job
    job.close()
