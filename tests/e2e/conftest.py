"""One lab for all tests of the whole pool: two nodes with four H100 each."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e.live import Live, name_of_this_run

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In CI a test of real daemons gets a second try, told as "rerun": its machine may be busy with something else."""
    for item in items:
        if os.environ.get("CI") and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1))


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
