"""Both daemons are killed (-9) and started again while jobs are on their way: each runs once, and no byte is wrong."""

import hashlib
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.federation.daemons import FED, PATIENCE_S, Pair, pair

JOBS = 6
DATA = random.Random(5).randbytes(5_000_000)
SCRIPT = """#!/bin/bash
echo {nth} >> {count}
sha256sum < in/data.bin
for n in 1 2 3 4 5 6; do head -c 700000 /dev/zero | tr '\\0' $n; echo err $n >&2; sleep 0.3; done
mkdir -p out/deep
cat in/data.bin in/data.bin > out/deep/double
exit {nth}
"""
OUTPUT = hashlib.sha256(DATA).hexdigest().encode() + b"  -\n" + b"".join(b"%d" % n * 700_000 for n in range(1, 7))
ERRORS = b"".join(b"err %d\n" % n for n in range(1, 7))


def submitted(both: Pair, nth: int, count: Path) -> str:
    home = both.home / str(nth)
    (home / "in").mkdir(parents=True)
    (home / "in/data.bin").write_bytes(DATA)
    (home / "job.sh").write_text(SCRIPT.format(nth=nth, count=count))
    return both.edge.submit("--stage-in", "in", "--stage-out", "out", "job.sh", cwd=home)


def ended(both: Pair) -> bool:
    return len(both.edge.fed("jobs").stdout.splitlines()) == 1


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 10))])
def test_each_job_runs_once_and_all_of_it_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    with pair() as both:
        count = both.home / "count"
        count.touch()
        count.chmod(0o666)
        jobs = [submitted(both, nth, count) for nth in range(JOBS)]
        until = time.monotonic() + PATIENCE_S
        kills = 0
        while not ended(both):
            assert time.monotonic() < until, both.edge.fed("jobs").stdout.decode() + both.edge.log() + both.hpc.log()
            if kills < 10:
                site = chance.choice(both.sites)
                site.kill()
                site.start()
                kills += 1
        for nth, job in enumerate(jobs):
            both.edge.fed("wait", job, wants=nth)
            logs = both.edge.fed("logs", job)
            assert (logs.stdout, logs.stderr) == (OUTPUT, ERRORS)
            out = both.home / str(nth) / "out"
            assert [one.name for one in out.rglob("*")] == ["deep", "double"]
            assert (out / "deep/double").read_bytes() == DATA + DATA
        assert sorted(map(int, count.read_text().split())) == list(range(JOBS))
        assert kills


def test_who_follows_sees_every_byte_once_when_the_far_daemon_is_killed() -> None:
    with pair() as both:
        script = "for n in $(seq 100 140); do head -c 100000 /dev/zero | tr '\\0' x; echo $n; sleep 0.1; done"
        job = both.edge.submit("--wrap", script)
        command = [*FED, "logs", "-f", job, "--socket", str(both.edge.socket)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            begin = following.stdout.read(150_000)
            both.hpc.kill()
            both.hpc.start()
            rest = following.stdout.read()
            assert following.wait(PATIENCE_S) == 0
        assert begin + rest == b"".join(b"x" * 100_000 + b"%d\n" % n for n in range(100, 141))
        both.edge.fed("wait", job)


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def open_file(both: Pair, name: str) -> Path:
    """That a job may write to, whoever it runs as."""
    path = both.home / name
    path.touch()
    path.chmod(0o666)
    return path


def test_what_is_over_is_found_again_by_a_far_daemon_that_lost_its_journal() -> None:
    with pair() as both:
        count, home = open_file(both, "count"), both.home / "gone"
        home.mkdir()
        script = f"echo 1 >> {count}; echo out; echo 42 > result; sleep 3; exit 5"
        job = both.edge.submit("--stage-out", "result", "--wrap", script, cwd=home)
        home.rmdir()
        until(lambda: b"can't write to" in both.edge.fed("show", job).stdout)
        both.hpc.kill()
        for path in (both.hpc.folder / "state").glob("fed.db*"):
            path.unlink()
        both.hpc.start()
        home.mkdir()
        both.edge.fed("wait", job, wants=5)
        assert both.edge.fed("logs", job).stdout == b"out\n"
        assert (home / "result").read_text() == "42\n"
        assert count.read_text() == "1\n"


def test_a_job_that_was_stopped_goes_on_though_the_far_daemon_was_dead_when_that_was_wanted() -> None:
    with pair() as both:
        pid = open_file(both, "pid")
        job = both.edge.submit("--wrap", f"echo $$ > {pid}; while [ -s {pid} ]; do sleep 0.1; done; exit 6")
        until(lambda: pid.read_text().endswith("\n"))
        until(lambda: b"running" in both.edge.fed("jobs").stdout)
        both.edge.fed("signal", "--signal", "STOP", job)
        process = Path("/proc", pid.read_text().strip(), "stat")
        until(lambda: process.read_text().rpartition(")")[2].split()[0] == "T")
        pid.write_text("")
        both.hpc.kill()
        both.edge.fed("signal", "--signal", "CONT", job)
        both.hpc.start()
        both.edge.fed("wait", job, wants=6)
