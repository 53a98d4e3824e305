from pathlib import Path

import pytest

from slurm_plugin.agent.binding import Rules
from tests.integration.agent.bench import Bench
from tests.unit.agent.world import FakeGpus, FakeSlurm, gpu, terms


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is busy is tried again at once."""
    monkeypatch.setattr("slurm_plugin.agent.changes.FIRST_PAUSE_S", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One GPU with two 1g.20gb, one 3g.40gb and no room left; a prolog waits as long as the test does."""
    full = gpu("A", ("1g.20gb", 0), ("1g.20gb", 2), ("3g.40gb", 4))
    rules = Rules(node="n1", wait_s=60.0, ask_pause_s=0.0)
    return Bench(folder=tmp_path / "state", gpus=FakeGpus(full), slurm=FakeSlurm(), rules=rules, terms=terms("A"))
