"""Jobs go between three sites while every daemon is killed and every link is cut: each runs once, and no byte is wrong.

FED_CHAOS_SEED=number runs what an earlier run did: which jobs, and what befalls whom in which order.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from slurm_plugin.lab import processes
from slurm_plugin.lab.site import Lab
from tests.e2e import chaos
from tests.e2e.federation.orders import OUT, TOLD, Crowd, Order, orders
from tests.e2e.federation.person import Person
from tests.e2e.federation.sites import USER, Three, disturb, forgotten, handed, restart, three

pytestmark = pytest.mark.slurm

_BEGAN = " started"  # of a daemon of Slurm's, in its log
LOST = frozenset({"lost", "signaled", "cancelled", "node_fail"})  # Slurm ends what it does not know, if it still runs


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("jobs", "storm_s", "strikes", "end_s"),
    [
        pytest.param(30, 15.0, 2, 300.0, id="30-jobs", marks=pytest.mark.once),
        pytest.param(500, 240.0, 25, 1200.0, id="500-jobs", marks=pytest.mark.soak),
    ],
)
def test_each_job_runs_once_and_all_of_it_comes_back(jobs: int, storm_s: float, strikes: int, end_s: float) -> None:
    seed = chaos.seed_of_this_run("FED_CHAOS_SEED")
    print(f"FED_CHAOS_SEED={seed}")
    began = time.monotonic()
    with three() as sites, Person(USER, _home(sites, "edge")) as edge, Person(USER, _home(sites, "hpc")) as hpc:
        for name in ("edge", *(one.lab.name for one in sites.clusters.values())):
            (sites.root / f"{TOLD}.{name}").touch()
            (sites.root / f"{TOLD}.{name}").chmod(0o666)
        crowds = [Crowd(sites, edge, "edge"), Crowd(sites, hpc, "hpc")]
        storm = chaos.Storm(victims(sites), seed, storm_s, strikes)
        shares = {"edge": jobs - jobs // 3, "hpc": jobs // 3}
        people = [partial(_submit, one, shares[one.origin], seed, storm_s) for one in crowds]
        with chaos.beside(*storm.works(), *people, over=[]):
            pass
        rows = {one.origin: _ended(sites, one, end_s) for one in crowds}
        took_s = time.monotonic() - began
        verdict = Verdict(sites, rows)
        for crowd in crowds:
            verdict.judge(crowd)
        print(f"{verdict}, hits={dict(storm.hits)} took={took_s:.0f}s")
        assert verdict.wrong == [], "\n".join(verdict.wrong)
        assert verdict.right > jobs // 2
        assert storm.hits.keys() == storm.victims.keys()
        _nothing_is_left(sites)


def _home(sites: Three, origin: str) -> Path:
    home = sites.root / "home" / origin
    home.mkdir(parents=True)
    home.chmod(0o777)
    return home


def _submit(crowd: Crowd, count: int, seed: int, within_s: float) -> None:
    rng = random.Random(f"{seed} {crowd.origin}")
    for order in orders(crowd.origin, count, rng):
        time.sleep(rng.uniform(0.0, 1.4) * within_s / count)
        crowd.submit(order)


def victims(sites: Three) -> dict[str, Callable[[random.Random], None]]:
    found: dict[str, Callable[[random.Random], None]] = {}
    for name, site in sites.sites.items():
        found[f"fed {name}"] = partial(restart, site)
    for name, cluster in sites.clusters.items():
        for daemon in ("slurmctld", "slurmd"):
            found[f"{daemon} {name}"] = partial(_kill_slurm, cluster.lab, daemon)
    found["sshd"] = partial(restart, sites.sshd)
    for name, line in sites.lines.items():
        found[f"line {name}"] = partial(disturb, line)
    return found


def _kill_slurm(lab: Lab, daemon: str, rng: random.Random) -> None:
    chaos.kill(lab, daemon if daemon == "slurmctld" else f"{daemon}:{rng.choice(lab.nodes)}")


def _ended(sites: Three, crowd: Crowd, within_s: float) -> dict[str, dict[str, Any]]:
    """Each job of this origin by its name, once all are over."""
    site = sites.sites[crowd.origin]

    def rows(*more: str) -> list[dict[str, Any]]:
        return list(json.loads(site.fed("jobs", "--all-users", "--json", "--most", "5000", *more).stdout)["jobs"])

    def over() -> bool:
        for cluster in sites.clusters.values():
            cluster.resume()
        return not rows()

    in_time = processes.wait_until(over, limit_s=within_s, every_s=1.0)
    logs = [f"--- {one.name}\n{one.log()[-3000:]}" for one in sites.sites.values()]
    assert in_time, "\n".join((json.dumps(rows(), indent=1), *logs))
    return {row["name"]: row for row in rows("-d")}


class Verdict:
    """Each job against what its order says.

    One that is not as it should be is right only where docs/federation_jobs.md says so: Slurm forgot it after it had
    claimed its attempt, by Slurm's own log. Then it is over, ran no second time, and every byte that came is its own.
    """

    def __init__(self, sites: Three, rows: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.sites, self.rows = sites, rows
        self.wrong: list[str] = []
        self.looked_at = self.right = self.forgotten = self.unanswered = 0
        self._told: dict[str, list[tuple[str, str]]] = {}  # token -> (cluster, number of its job in Slurm) of each run
        for file in sites.root.glob(f"{TOLD}.*"):
            for line in file.read_text().splitlines():
                key, _, number = line.partition(" ")
                told = self._told.setdefault(str(UUID(key.partition(".")[0])), [])
                told.append((file.name.partition(".")[2], number))
        self._handed: dict[str, set[tuple[str, str]]] = {}
        self._forgotten: set[tuple[str, str]] = set()
        for site, cluster in sites.clusters.items():
            name, log = cluster.lab.name, (cluster.lab.log / "slurmctld.log").read_text(errors="replace")
            self._forgotten |= {(name, number) for number in forgotten(log)}
            for token, number in handed(sites.sites[site].log()):
                self._handed.setdefault(token, set()).add((name, number))

    def __str__(self) -> str:
        return f"jobs={self.looked_at} right={self.right} forgotten={self.forgotten} unanswered={self.unanswered}"

    def judge(self, crowd: Crowd) -> None:
        rows = self.rows[crowd.origin]
        for name in crowd.asked:
            if name in rows:
                self.looked_at += 1
                self._judge(crowd, name, rows[name])
            else:
                self.unanswered += 1
                if name in crowd.said:
                    self.wrong.append(f"{name} was acknowledged, and is not known")

    def _judge(self, crowd: Crowd, name: str, row: dict[str, Any]) -> None:
        order, told = crowd.asked[name], self._told.get(row["job"], [])
        logs = crowd.person.fed(self.sites.sites[crowd.origin].socket, "logs", row["job"])
        file = crowd.home(name) / OUT
        came = Came(out=logs.stdout, err=logs.stderr, file=file.read_bytes() if file.exists() else None)
        faults = _faults(order, row, came)
        if crowd.said.get(name, row["job"]) != row["job"]:
            faults.append(f"it was acknowledged as {crowd.said[name]}")
        if not faults and len(told) == 1:
            self.right += 1
        elif self._was_forgotten(row["job"], told) and _is_part(order, row, came):
            self.forgotten += 1
        else:
            self.wrong.append(
                f"{name} ran as {told}: {faults}: {row}\n" + "\n".join(self._slurm_says(row["job"], told))
            )

    def _runs(self, token: str, told: list[tuple[str, str]]) -> set[tuple[str, str]]:
        """One that did not come as far as its first line is known by what the daemon handed over."""
        return set(told) or self._handed.get(token, set())

    def _slurm_says(self, token: str, told: list[tuple[str, str]]) -> Iterator[str]:
        for one in self.sites.clusters.values():
            words = [f"JobId={number} " for cluster, number in self._runs(token, told) if cluster == one.lab.name]
            for file in sorted(one.lab.log.glob("slurm*.log")):
                lines = file.read_text(errors="replace").splitlines()
                yield from (line for line in lines if _BEGAN in line or any(word in f"{line} " for word in words))

    def _was_forgotten(self, token: str, told: list[tuple[str, str]]) -> bool:
        return len(told) <= 1 and bool(self._runs(token, told) & self._forgotten)


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What of a job came back to its origin."""

    out: bytes
    err: bytes
    file: bytes | None


def _is_part(order: Order, row: dict[str, Any], came: Came) -> bool:
    parts = order.stdout.startswith(came.out) and order.stderr.startswith(came.err)
    return row["end"] in LOST and parts and (came.file is None or order.result.startswith(came.file))


def _faults(order: Order, row: dict[str, Any], came: Came) -> list[str]:
    end = ("signaled", None, order.code - 128) if order.code > 128 else ("exited", order.code, None)
    found = []
    if (row["end"], row["exit_code"], row["signal"]) != end:
        found.append(f"ended {row['end']} {row['exit_code']} {row['signal']} {row['why']!r}, not {end}")
    pairs = {
        "stdout": (came.out, order.stdout),
        "stderr": (came.err, order.stderr),
        "file": (came.file, order.result),
    }
    for what, (seen, wanted) in pairs.items():
        if seen != wanted:
            found.append(f"{what} has {None if seen is None else len(seen)} bytes, not these {len(wanted)}")
    return found


def _nothing_is_left(sites: Three) -> None:
    """Every site has let go of what is over: only claims are kept."""

    def left() -> list[str]:
        return [str(one) for spool in sites.spools for one in spool.glob("*/*") if one.name != "claim"]

    assert processes.wait_until(lambda: not left(), limit_s=120.0, every_s=1.0), left()
