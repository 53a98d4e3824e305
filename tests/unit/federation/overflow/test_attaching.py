"""Which run of its job a proxy is of."""

import pytest

from federation.overflow.attaching import counted
from federation.overflow.burst import SlurmJob
from federation.overflow.frames import Hello


@pytest.mark.parametrize(
    ("told", "variable", "restarts", "found"),
    [
        (0, b"", 0, 0),
        (0, b"1", 1, 1),  # its second run: what the plugin was told is 0 on every release
        (0, b"1", 0, 0),  # its first one, submitted from a job that had been requeued
        (0, b"", 1, 0),  # a proxy of the run before
        (0, b"1", 2, 0),
        (2, b"", 2, 2),
        (0, b"99999999999999999999", 1, 0),
        (0, b"\xb2", 2, 0),
    ],
)
def test_the_number_of_a_run_is_the_plugins_or_the_environments_as_slurm_has_it(
    told: int, variable: bytes, restarts: int, found: int
) -> None:
    env = ((b"HOME", b"/"), (b"SLURM_RESTART_COUNT", variable)) if variable else ()
    hello = Hello(job_id=1, node="cloud-1", restarts=told, env=env)
    job = SlurmJob(job_id=1, uid=1000, state="RUNNING", submitted_at=1, restarts=restarts)
    assert counted(hello, job).restarts == found
