"""Slurm's word against what runs elsewhere: limits, numbers, and a slurmctld that forgets or gives an id away twice."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.lab import commands
from tests.e2e.federation.bursting import USER, Bursting, bursting
from tests.e2e.federation.sites import Cluster
from tests.e2e.live import Live

pytestmark = pytest.mark.slurm

LIMIT_S = 120.0
BUSY = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exit 3"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bursting]:
    """The far side's nodes have an epilog that takes a moment: until its end slurmd still has the job."""
    epilog = tmp_path_factory.mktemp("far") / "epilog"
    epilog.write_text("#!/bin/sh\nexec sleep 1\n")
    epilog.chmod(0o755)
    with bursting(lines_there=(f"Epilog={epilog}",)) as made:
        yield made


def submit(site: Bursting, script: str, *options: str) -> str:
    return site.here.submit(USER, "--chdir", str(site.here.home(USER)), "--partition=cloud", *options, script=script)


def far(site: Bursting) -> list[str]:
    """What runs or waits at the far side's Slurm."""
    return site.there.slurm("squeue", "-h", "-a", "-o", "%i").split()


def runs(site: Bursting, job: str) -> list[dict[str, Any]]:
    """Newest first."""
    told = json.loads(site.hpc.fed("sacct", "--all-users", "--json", job).stdout)
    assert told["kind"] == "fed-sacct"
    return list(told["runs"])


def note(site: Bursting, job: str) -> dict[str, Any]:
    found = re.search(r"fed:(\{[^}]*\})", site.here.slurm("scontrol", "show", "job", "-o", job))
    return dict(json.loads(found[1])) if found else {}


def forget(live: Live, but: Path) -> None:
    """A slurmctld that was killed and has lost what it knew but this: what is forgotten gets its ids again."""
    lab = live.lab
    commands.stop(lab.name, "slurmctld", live.base)
    shutil.rmtree(lab.state / "slurmctld")
    shutil.copytree(but, lab.state / "slurmctld")
    commands.start(lab.name, "slurmctld", live.base)


def saved(live: Live, to: Path) -> Path:
    """What slurmctld knows now, as it has it on disk a few seconds later."""
    now, state = time.time(), live.lab.state / "slurmctld"
    live.until(lambda: any(one.stat().st_mtime > now for one in state.glob("job_state")), "a saved state", LIMIT_S)
    return Path(shutil.copytree(state, to / "saved"))


def test_the_numbers_of_a_run_are_on_the_job_and_in_fed_sacct(site: Bursting) -> None:
    job = submit(site, BUSY, "--time=10")
    site.wait_state(job, "FAILED")
    (run,) = runs(site, job)
    assert (run["job"], run["user"], run["pool"], run["gateway"]) == (job, USER, "cloud/batch", "cloud-1")
    assert (run["state"], run["end"], run["exit_code"], run["limit_s"]) == ("ended", "exited", 3, 600)
    assert run["node"] in site.there.slurm("sinfo", "-h", "-N", "-o", "%N").split()
    assert 0.0 < run["cpu_s"] < 60.0
    assert run["began_at"] - 1 <= run["started_at"] <= run["ended_at"]
    on_job = note(site, job)
    assert (on_job["how"], on_job["code"], on_job["node"]) == ("exited", "3:0", run["node"])
    assert on_job["start"] == int(run["started_at"])
    site.here.until(lambda: runs(site, job)[0]["closed"], "a closed burst", LIMIT_S)
    assert json.loads(site.hpc.fed("sacct", "--json", "4000000").stdout)["runs"] == []


def test_the_users_own_limit_counts_from_the_start_elsewhere_and_comes_back(site: Bursting) -> None:
    job = submit(site, "echo up; exec sleep 600", "--time=30")
    site.here.until(lambda: note(site, job).get("state") == "running", "a note that it runs", LIMIT_S)
    site.here.until(lambda: site.field(job, "TimeLimit") in ("00:30:00", "00:31:00"), "its own limit", LIMIT_S)
    site.here.run(USER, "scontrol", "requeue", job)
    site.wait_state(job, "PENDING")
    site.here.until(lambda: "open" not in note(site, job), "nothing open", LIMIT_S)
    assert site.field(job, "TimeLimit") == "00:30:00"
    assert [one["end"] for one in runs(site, job)] == ["cancelled"]
    site.here.run(USER, "scancel", job)
    site.here.until(lambda: not far(site), "nothing runs on", LIMIT_S)


def test_what_slurmctld_forgot_leaves_nothing_running_and_the_daemon_says_which(site: Bursting, tmp_path: Path) -> None:
    job = submit(site, "echo up; exec sleep 600")
    site.here.until(lambda: bool(far(site)), "a job at the far side", LIMIT_S)
    (run,) = runs(site, job)
    forget(site.here, tmp_path)
    site.here.until(lambda: not far(site), "nothing runs on", LIMIT_S)
    site.here.until(lambda: runs(site, job)[0]["closed"], "a closed burst", LIMIT_S)
    assert "does not know it" in runs(site, job)[0]["why"]
    (line,) = [line for line in site.hpc.log().splitlines() if "burst.forgotten" in line]
    assert run["token"] in line
    site.wait_open()


def test_jobs_whose_start_slurmctld_forgot_are_started_again_and_find_what_runs(site: Bursting, tmp_path: Path) -> None:
    """It ends what it finds of the first start as the node registers, and Slurm refuses a second in that second."""
    told = site.there.home(USER) / "told"
    jobs = [submit(site, f"echo {nth} >> {told}; sleep 15; exit 7", "--hold") for nth in range(4)]
    but = saved(site.here, tmp_path)
    site.here.slurm("scontrol", "release", ",".join(jobs))
    site.here.until(lambda: told.exists() and len(told.read_text().split()) == 4, "all run", LIMIT_S)
    forget(site.here, but)
    site.here.slurm("scontrol", "release", ",".join(jobs))
    for job in jobs:
        site.wait_state(job, "FAILED", "CANCELLED", "COMPLETED", limit_s=LIMIT_S)
    assert [site.field(job, "ExitCode") for job in jobs] == ["7:0"] * 4
    assert sorted(told.read_text().split()) == ["0", "1", "2", "3"]


def test_jobs_whose_start_the_far_slurmctld_forgot_are_lost_and_nobody_cancelled_them(
    site: Bursting, tmp_path: Path
) -> None:
    """It ends what it finds of the first start; its slurmd refuses the second, and cancels the job in Slurm."""
    there, told = site.there, site.there.home(USER) / "ran"
    there.slurm("scontrol", "update", "partitionname=gpu", "state=down")
    jobs = [submit(site, f"sleep 2; echo {nth} >> {told}; sleep 60; exit 7") for nth in range(4)]
    there.until(lambda: len(far(site)) == 4, "all wait there", LIMIT_S)
    but = saved(there, tmp_path)
    there.slurm("scontrol", "update", "partitionname=gpu", "state=up")
    there.until(lambda: told.exists() and len(told.read_text().split()) == 4, "all run there", LIMIT_S)
    forget(there, but)
    for job in jobs:
        site.wait_state(job, "FAILED", "CANCELLED", "COMPLETED", limit_s=LIMIT_S)
    ends = {runs(site, job)[0]["end"] for job in jobs}
    assert "lost" in ends
    assert "cancelled" not in ends  # one whose child was killed first may have come to an exit of its own
    assert {site.here.state(job) for job in jobs} == {"FAILED"}
    assert sorted(told.read_text().split()) == ["0", "1", "2", "3"]
    Cluster(lab=there.lab, spool=site.cloud.folder).resume()


@pytest.mark.soak  # 24.11 may take the end of the first one's slurmstepd for the second's: Slurm then says FAILED
def test_an_id_that_is_given_away_twice_is_two_jobs(site: Bursting, tmp_path: Path) -> None:
    """The first runs elsewhere while its daemon is away; the second gets its id, and each runs once."""
    home = site.here.home(USER)
    once = 'echo "$1" >> ran; [ "$1" = second ] || exec sleep 600'
    first = submit(site, f"set first; {once}")
    site.here.until(lambda: bool(far(site)), "a job at the far side", LIMIT_S)
    site.hpc.end()
    forget(site.here, tmp_path)
    second = submit(site, f"set second; {once}", f"--output={home}/second.out")
    while second != first:  # ids begin anew
        site.here.run(USER, "scancel", second)
        second = submit(site, f"set second; {once}", f"--output={home}/second.out")
    site.hpc.start()
    site.wait_state(second, "COMPLETED", "FAILED", "CANCELLED", limit_s=LIMIT_S)
    assert site.here.state(second) == "COMPLETED", (
        site.here.slurm("scontrol", "show", "job", "-o", second),
        site.hpc.log(),
    )
    site.here.until(lambda: not far(site), "nothing runs on", LIMIT_S)
    new, old = runs(site, first)[:2]
    assert (old["end"], new["end"], new["exit_code"]) == ("cancelled", "exited", 0)
    assert "another job" in old["why"]


@pytest.mark.soak
def test_a_limit_that_is_over_elsewhere_is_slurms_own_timeout(site: Bursting) -> None:
    job = submit(site, "echo up; exec sleep 600", "--time=1")
    site.wait_state(job, "TIMEOUT", limit_s=180)
    run = runs(site, job)[0]
    assert (run["end"], note(site, job)["how"]) == ("timeout", "timeout")
    assert 58 <= run["ended_at"] - run["started_at"] <= 70
