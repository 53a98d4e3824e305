"""What holds for every test."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# `make test` looks at the same generated cases each time, and `make soak` for new ones. How long one takes
# says how busy the machine is.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", derandomize=False, deadline=None)
settings.load_profile("same")

HERE = Path(__file__).parent
# What must never happen once, such as two jobs in one slice, is no matter of a busy machine. Chaos is not among them:
# it also waits for Slurm to end each job, which a slurmctld that is killed often enough now and then does not.
SAFETY = frozenset(
    f"test_{name}.py"
    for name in (
        *("claims", "crashes", "daemons_killed", "device_cgroup", "gateway_lost", "hostile", "isolation"),
        *("killed", "link", "never_shared", "recut_killed", "rescue", "slurm_forgets", "strangers"),
        *("twins", "untrusted", "vacancy"),
    )
)
REAL = tuple(HERE / name for name in ("contract", "e2e", "integration"))  # processes, sockets, clocks that are not ours


def has_second_try(path: Path) -> bool:
    """In CI a test of real daemons gets one, told as "rerun": its machine may be busy with something else.

    Not one of safety.
    """
    return path.name not in SAFETY and any(path.is_relative_to(folder) for folder in REAL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if os.environ.get("CI") else ():
        if has_second_try(item.path):
            item.add_marker(pytest.mark.flaky(reruns=1))
