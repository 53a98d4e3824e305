"""A real sshd on loopback, with no Slurm behind it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab.people import ensure_people
from tests.contract.federation.executors.sshd import Sshd


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that users may pass."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def sshd(folder: Path) -> Iterator[Sshd]:
    ensure_people()
    daemon = Sshd(folder, {})
    daemon.start()
    yield daemon
    daemon.kill()
