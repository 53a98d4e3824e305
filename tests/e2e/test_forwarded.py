"""From one daemon to another, and there into a real Slurm: a job, its files, its code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab.people import ensure_people
from tests.e2e.bare_slurm import bare_slurm
from tests.integration.federation.daemons import Pair, pair

pytestmark = pytest.mark.slurm
USER = "alice"


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    ensure_people()
    pool = "{{{{slurm: {{{{folder: {{spool}}, conf: {conf}}}}}}}}}"
    with (
        bare_slurm({"job_submit.lua": LUA}, lambda _: "KillWait=2\nMinJobAge=300\n") as slurm,
        pair(pool.format(conf=slurm.conf), USER) as found,
    ):
        yield found


LUA = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


def test_a_job_goes_into_slurm_there_and_all_of_it_comes_back(both: Pair, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data\n")
    script = "id -un; echo $SLURM_JOB_ID | tr 0-9 n; mkdir out; cat data data > out/twice; exit 5"
    job = both.edge.submit("--stage-in", "data", "--stage-out", "out/*", "--wrap", script, cwd=tmp_path)
    both.edge.fed("wait", job, wants=5)
    assert both.edge.fed("logs", job).stdout.split()[0] == USER.encode()
    assert (tmp_path / "out/twice").read_text() == "data\ndata\n"


def test_a_daemon_that_is_killed_finds_its_job_in_slurm_again(both: Pair) -> None:
    job = both.edge.submit("--wrap", "echo begin; sleep 5; echo end; exit 6")
    both.hpc.kill()
    both.hpc.start()
    both.edge.fed("wait", job, wants=6)
    assert both.edge.fed("logs", job).stdout == b"begin\nend\n"
