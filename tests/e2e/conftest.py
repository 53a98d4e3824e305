"""One lab for all tests of the whole pool: two nodes with four H100 each."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e.live import Live, name_of_this_run


@pytest.fixture(scope="session")
def _started() -> Iterator[Live]:
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run()
    try:
        yield Live(commands.up(LabSpec(name=name), base))
    finally:
        commands.down(name, base)


@pytest.fixture
def live(_started: Live) -> Iterator[Live]:
    """The lab as it started: whatever a test leaves is cleared away after it."""
    yield _started
    _started.settle()
