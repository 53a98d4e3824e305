"""Row 8: a site is killed (-9) with 20,000 jobs in flight, again and again, at either end and at any moment.

Every third time the far site dies between its backend's start of a job and the journal's word on it. In between, users
go on to submit. What was accepted must have been started once at the end; the time is from the start of the process
until it answers from its journal.
"""

import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.federation_pair import Pair, Site, pair
from benchmarks.row import Row

IN_FLIGHT = 20_000
KILLS = 20
FLOW = 10  # jobs of each user between two kills
MOST_LIFE_S = 0.6
SERVES_BOUND_MS = 500.0
DIED_S = 30.0
STARTED_S = 120.0  # until the far backend has started all that its site has
POLL_S = 0.005


def measure() -> Iterator[Row]:
    chance = random.Random(8)
    with pair() as made:
        made.start()
        made.edge.ask("forward", jobs=IN_FLIGHT, rate=0)
        accepted = made.folder / "accepted"
        serves: dict[str, list[float]] = {"edge": [], "hpc": []}
        used: list[float] = []
        for number in range(KILLS):
            made.edge.ask("flow", jobs=FLOW, accepted=str(accepted))
            site = made.edge if number % 2 else made.hpc
            _kill(site, at_start=number % 3 == 0 and site is made.hpc, chance=chance)
            start = time.perf_counter()
            site.start()
            serves[site.folder.name].append(1000 * (time.perf_counter() - start))
            used.append(1000 * site.used_s())
            made.edge.ask("linked", site="hpc")
        open_jobs = made.edge.ask("settled")["open"]
        _until_started(made.hpc, open_jobs)
        yield from _rows(made, accepted, open_jobs, serves, used)


def _until_started(site: Site, jobs: int) -> None:
    until = time.monotonic() + STARTED_S
    while len(site.ran.read_bytes().splitlines()) < jobs and time.monotonic() < until:
        time.sleep(0.5)


def _kill(site: Site, *, at_start: bool, chance: random.Random) -> None:
    if at_start:
        site.ask("die", starts=chance.randrange(1, 50))
        process, until = site.process, time.monotonic() + DIED_S
        while process is not None and process.poll() is None and time.monotonic() < until:
            time.sleep(POLL_S)
    else:
        time.sleep(chance.uniform(0.0, MOST_LIFE_S))
    site.end(signal.SIGKILL)


def _rows(
    made: Pair, accepted: Path, open_jobs: int, serves: dict[str, list[float]], used: list[float]
) -> Iterator[Row]:
    every = [one for some in serves.values() for one in some]
    yield Row(
        name=f"recovery: until it serves after kill -9, {IN_FLIGHT} jobs",
        value=statistics.median(every),
        unit="ms",
        bound=SERVES_BOUND_MS,
        beside={
            "worst_ms": round(max(every)),
            "near_ms": round(statistics.median(serves["edge"])),
            "far_ms": round(statistics.median(serves["hpc"])),
            "cpu_ms": round(statistics.median(used)),
            "kills": len(every),
        },
    )
    tokens = Counter(line.split("/")[0] for line in made.hpc.ran.read_text().splitlines())
    told = set(accepted.read_text().split())
    beside: dict[str, float | str] = {"accepted_between_kills": len(told), "jobs": open_jobs, "started": len(tokens)}
    lost = len(told - tokens.keys()) + max(0, open_jobs - len(tokens))
    yield Row(name="recovery: accepted jobs lost", value=float(lost), unit="jobs", bound=0.0, beside=beside)
    doubled = sum(count > 1 for count in tokens.values())
    yield Row(name="recovery: jobs started twice", value=float(doubled), unit="jobs", bound=0.0, beside=beside)
