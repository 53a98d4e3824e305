"""Jobs of one Slurm run at another while all between them is killed and cut: each once, and Slurm tells its true end.

FED_CHAOS_SEED=number runs what an earlier run did: which jobs, and what befalls whom in which order.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from federation.lab.sites import NODE
from slurm_plugin.lab import processes
from slurm_plugin.lab.site import Lab
from tests.e2e import chaos
from tests.e2e.federation.bursting import USER, Bursting, bursting
from tests.e2e.federation.sites import Cluster, disturb, forgotten, handed, restart

pytestmark = pytest.mark.slurm

OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
SUBMIT_TRIES, PAUSE_S = 60, 1.0  # while there is no slurmctld
ARRAY = 3  # elements of one
# The first thing a job does is what must never happen twice.
_SCRIPT = """#!/bin/bash
echo "{name} ${{FED_JOB%.*}} $SLURM_JOB_ID" >> {told}
for n in 1 2 3; do head -c {size} /dev/zero | tr '\\0' $n; echo err $n >&2; sleep {pause}; done
{end}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to submit. Its elements are named `<name>_<element>`."""

    name: str
    tasks: int
    code: int  # above 128 it dies by a signal
    size: int
    pause_s: float

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{task}" for task in range(1, self.tasks + 1)) if self.tasks > 1 else (self.name,)

    def script(self, told: str) -> str:
        name = f"{self.name}_$SLURM_ARRAY_TASK_ID" if self.tasks > 1 else self.name
        end = f"kill -{self.code - 128} $$" if self.code > 128 else f"exit {self.code}"
        return _SCRIPT.format(told=told, name=name, size=self.size, pause=self.pause_s, end=end)

    @property
    def end(self) -> "End":
        signal = self.code - 128 if self.code > 128 else 0
        return End("FAILED" if self.code else "COMPLETED", f"{0 if signal else self.code}:{signal}")

    @property
    def stdout(self) -> bytes:
        return b"".join(b"%d" % n * self.size for n in (1, 2, 3))

    @property
    def stderr(self) -> bytes:
        return b"err 1\nerr 2\nerr 3\n"


class End(NamedTuple):
    state: str
    code: str  # status:signal, as sacct prints it


LOST = End("FAILED", "1:0")  # docs/overflow_jobs.md: it had begun, and its own Slurm forgot it


def orders(count: int, rng: random.Random) -> Iterator[Order]:
    """`count` jobs, with all elements of arrays."""
    while count > 0:
        tasks = ARRAY if count >= ARRAY and rng.random() < 0.1 else 1
        count -= tasks
        yield Order(
            name=f"j{count}",
            tasks=tasks,
            code=rng.choice([0, 0, 0, 1, 77, rng.randrange(128), 137, 143]),
            size=rng.choice([0, 1, 3000, 300_000]),
            pause_s=round(rng.uniform(0.1, 1.5), 2),
        )


@dataclass(slots=True)
class Crowd:
    """A user who submits. `submitted` has each sbatch that may have worked: no name is used twice."""

    site: Bursting
    submitted: list[Order] = field(default_factory=list)
    said: set[str] = field(default_factory=set)  # names of those that were acknowledged

    def submit_all(self, count: int, seed: int, within_s: float) -> None:
        rng = random.Random(f"{seed} {USER}")
        for order in orders(count, rng):
            time.sleep(rng.uniform(0.0, 1.4) * within_s / count)
            for attempt in range(SUBMIT_TRIES):
                named = Order(**{**_fields(order), "name": f"{order.name}.{attempt}"})
                self.submitted.append(named)
                if self._sbatch(named):
                    self.said.add(named.name)
                    break
                time.sleep(PAUSE_S)

    def _sbatch(self, order: Order) -> bool:
        here = self.site.here
        script = here.home(USER) / f"{order.name}.sh"
        script.write_text(order.script(str(self.told)))
        array = (f"--array=1-{order.tasks}",) if order.tasks > 1 else ()
        pattern = f"{order.name}_%a" if array else order.name
        names = (f"--job-name={order.name}", f"--output={pattern}.out", f"--error={pattern}.err")
        return here.run(USER, "sbatch", "--partition=cloud", *array, *names, str(script)).code == 0

    @property
    def told(self) -> Any:
        return self.site.there.home(USER) / "told"


def _fields(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in Order.__slots__}


def victims(site: Bursting) -> dict[str, Callable[[random.Random], None]]:
    here, there = site.here.lab, site.there.lab
    return {
        "fed hpc": partial(restart, site.hpc),
        "fed cloud": partial(restart, site.cloud),
        "slurmctld hpc": lambda _: chaos.kill(here, "slurmctld"),
        "slurmctld cloud": lambda _: chaos.kill(there, "slurmctld"),
        "gateway": lambda _: chaos.kill(here, f"slurmd:{NODE}"),
        "slurmstepd": partial(kill_a_slurmstepd, site),
        "link": partial(disturb, site.line),
    }


def kill_a_slurmstepd(site: Bursting, rng: random.Random) -> None:
    """One of the gateway's, as soon as there is one."""
    lab = site.here.lab

    def killed() -> bool:
        steps = [process for process in alive(lab, NODE) if process.name.startswith("slurmstepd")]
        processes.kill(rng.sample(steps, min(1, len(steps))))
        return bool(steps)

    assert processes.wait_until(killed, limit_s=120.0)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("jobs", "storm_s", "strikes", "end_s"),
    [
        pytest.param(18, 15.0, 2, 500.0, id="18-jobs", marks=pytest.mark.once),
        pytest.param(200, 200.0, 20, 900.0, id="200-jobs", marks=pytest.mark.soak),
    ],
)
def test_each_job_runs_once_and_its_slurm_tells_its_end(jobs: int, storm_s: float, strikes: int, end_s: float) -> None:
    seed = chaos.seed_of_this_run("FED_CHAOS_SEED")
    print(f"FED_CHAOS_SEED={seed}")
    began = time.monotonic()
    with bursting(accounting=True) as site:
        crowd, storm = Crowd(site), chaos.Storm(victims(site), seed, storm_s, strikes)
        crowd.told.touch()
        crowd.told.chmod(0o666)
        with chaos.beside(*storm.works(), partial(crowd.submit_all, jobs, seed, storm_s), over=[]):
            pass
        verdict = Verdict(crowd, settle(site, end_s))
        print(f"{verdict} hits={dict(storm.hits)} took={time.monotonic() - began:.0f}s")
        assert verdict.wrong == [], "\n".join(verdict.wrong)
        assert verdict.right > jobs // 10, f"slurmctld forgot all but {verdict.right} jobs"
        assert storm.hits.keys() == storm.victims.keys()
        nothing_is_left(site)


class Known(NamedTuple):
    job: str  # as Slurm's commands name it
    end: End


def known(site: Bursting) -> dict[str, Known]:
    """Each job that its slurmctld knows, by name; of an array, each element."""
    fields = "Name:|,JobID:|,ArrayJobID:|,ArrayTaskID:|,State:|,exit_code:|"
    rows = site.here.slurm("squeue", "-h", "-a", "-r", "--states=all", "-O", fields).splitlines()
    found = {}
    for name, job, array, task, state, code, _ in (row.split("|") for row in rows):
        element = task.isdecimal()
        found[f"{name}_{task}" if element else name] = Known(f"{array}_{task}" if element else job, End(state, code))
    return found


def settle(site: Bursting, limit_s: float) -> dict[str, Known]:
    """What all jobs have come to, once they are over."""
    rows: dict[str, Known] = {}
    there = Cluster(lab=site.there.lab, spool=site.cloud.folder)

    def over() -> bool:
        there.resume()
        try:
            rows.clear()
            rows.update(known(site))
        except AssertionError:
            return False
        return bool(rows) and not left()

    def left() -> dict[str, Known]:
        return {name: one for name, one in rows.items() if one.end.state not in OVER}

    in_time = processes.wait_until(over, limit_s=limit_s, every_s=0.5)
    assert in_time, f"{left()}\n{picture(site)}"
    return rows


def picture(site: Bursting) -> str:
    shown: tuple[str, ...] = (site.here.slurm("squeue", "-a", "-o", "%i %j %T %r %P"), site.there.slurm("squeue", "-a"))
    shown += tuple(str(run) for run in runs(site) if not run["closed"])
    shown += tuple(one.fed("jobs", "--all-users", "--json").stdout.decode() for one in (site.hpc, site.cloud))
    return "\n".join((*shown, site.here.slurm("sinfo", "-R"), *(one.log()[-4000:] for one in (site.hpc, site.cloud))))


class Verdict:
    """Each job that its slurmctld knows, against what its order says; and the runs of those that it forgot.

    One that is not as it should be is right only where docs/overflow_jobs.md says so: the Slurm where it ran forgot it,
    by that Slurm's own log.
    """

    def __init__(self, crowd: Crowd, rows: dict[str, Known]) -> None:
        self.crowd, self.site, self.rows = crowd, crowd.site, rows
        self.wrong: list[str] = []
        self.right = self.lost = self.forgotten = self.unaccounted = 0
        self._told: dict[str, list[tuple[str, str]]] = {}  # name -> (token, number at the far side) of each run
        for line in crowd.told.read_text().splitlines():
            name, token, number = line.split(" ")
            self._told.setdefault(name, []).append((str(UUID(token)), number))
        there = self.site.there.lab
        self._forgotten = forgotten((there.log / "slurmctld.log").read_text(errors="replace"))
        self._handed: dict[str, set[str]] = {}
        for token, number in handed(self.site.cloud.log()):
            self._handed.setdefault(token, set()).add(number)
        self._accounted = accounted(self.site)
        self._runs = runs(self.site)
        for order in crowd.submitted:
            for name in order.jobs:
                if name in rows:
                    self._judge(order, name)
                else:
                    self.forgotten += order.name in crowd.said
        self._judge_runs()

    def __str__(self) -> str:
        return (
            f"known={len(self.rows)} right={self.right} lost={self.lost} forgotten={self.forgotten} "
            f"unaccounted={self.unaccounted} runs={len(self._runs)}"
        )

    def _judge(self, order: Order, name: str) -> None:
        told, end, home = self._told.get(name, []), self.rows[name].end, self.site.here.home(USER)
        out, err = ((home / f"{name}.{kind}").read_bytes() for kind in ("out", "err"))
        faults = [f"ran {len(told)} times"] if len(told) != 1 else []
        faults += [] if end.state == order.end.state else [f"is {end}, not {order.end}"]
        faults += [f"stdout has {len(out)} bytes, not these {len(order.stdout)}"] if out != order.stdout else []
        faults += [f"stderr is {err!r}"] if err != order.stderr else []
        forgot = bool(({number for _, number in told} or self._numbers_of(name)) & self._forgotten)
        if not faults and not (forgot and self._accounted.get(name) == LOST):  # else it had written all by then
            self.right += 1
            self._judge_accounting(name, order.end)
        elif len(told) <= 1 and forgot and order.stdout.startswith(out) and end.state == LOST.state:
            self.lost += 1
            self._judge_accounting(name, LOST)
        else:
            self.wrong.append(f"{name} {end} ran as {told}: {faults}")

    def _judge_accounting(self, name: str, wanted: End) -> None:
        """A slurmctld that was killed may not have told of an end, and never does."""
        end = self._accounted.get(name)
        if end is None or end.state not in OVER:
            self.unaccounted += 1
        elif end != wanted:
            self.wrong.append(f"{name} is {end} in sacct, not {wanted}")

    def _numbers_of(self, name: str) -> set[str]:
        """Of one that did not come as far as its first line: by what the daemon handed over."""
        run = next((run for run in self._runs if run["job"] == self.rows[name].job), None)
        return self._handed.get(run["token"], set()) if run else set()

    def _judge_runs(self) -> None:
        """What slurmctld forgot is stopped, and the daemon says which it was and why."""
        log = self.site.hpc.log()
        stopped = [line for line in log.splitlines() if "burst.forgotten" in line or "burst.reused" in line]
        known = {token for name in self.rows for token, _ in self._told.get(name, [])}
        for name, ran in self._told.items():
            for token, _ in ran:
                mine = [run for run in self._runs if run["token"] == token]
                ended = all(run["end"] in ("exited", "signaled", "lost") for run in mine)
                if not mine:
                    self.wrong.append(f"{name} ran as {token}, and the daemon has nothing of it")
                elif token not in known and not ended and not any(token in line for line in stopped):
                    self.wrong.append(f"{name} was forgotten, and the daemon does not say so: {mine}")


def accounted(site: Bursting) -> dict[str, End]:
    """By name. Of two jobs that had the same number, the one that had it last."""
    fields = "--format=JobID,JobName%40,State,ExitCode"
    rows = site.here.slurm("sacct", "-n", "-X", "-P", "-a", "-S", "now-1days", fields).splitlines()
    found = {}
    for job, name, state, code in (row.split("|") for row in rows):
        task = job.partition("_")[2]
        found[f"{name}_{task}" if task else name] = End(state.partition(" ")[0], code)
    return found


def runs(site: Bursting) -> list[dict[str, Any]]:
    told = site.hpc.fed("sacct", "--all-users", "--most", "10000", "--json").stdout
    return list(json.loads(told)["runs"])


def nothing_is_left(site: Bursting) -> None:
    here, there = site.here.lab, site.there
    # To a slurmctld that was killed something may still run.
    site.here.until(lambda: not any(alive(there.lab, node) for node in there.lab.nodes), "nothing runs elsewhere", 120)
    site.here.until(lambda: all(run["closed"] for run in runs(site)), "every run is closed", 120)
    site.here.until(lambda: not alive(here, NODE), "no proxy is left", 60)
    site.here.until(lambda: here_node(site) == "idle", f"{NODE} is idle, not {here_node(site)}", 60)
    spool = site.cloud.folder / "spool"

    def left() -> list[str]:
        return [str(one) for one in spool.glob("*/*") if one.name != "claim"]

    assert processes.wait_until(lambda: not left(), limit_s=120.0, every_s=1.0), left()


def alive(lab: Lab, node: str) -> tuple[processes.Process, ...]:
    return processes.jobs_of(lab.node_slurm_conf(node), lab.spool(node))


def here_node(site: Bursting) -> str:
    return site.here.slurm("sinfo", "-h", "-n", NODE, "-p", "cloud", "-o", "%T")
