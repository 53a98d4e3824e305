import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hooks.hook import CLIENT, Hook


@pytest.fixture(scope="session")
def built() -> Path:
    """The client with every read out of bounds and every undefined operation fatal."""
    lock = ("flock", str(CLIENT))  # files of tests run side by side, and make knows nothing of the other one
    subprocess.run([*lock, "make", "-s", "-C", str(CLIENT), "all", "asan"], check=True)
    return CLIENT / "build"


@pytest.fixture
def hook(tmp_path: Path, built: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path, built)
    yield hook
    hook.close()
