"""Row 9: what a site keeps in memory for each job that it tracks, and what it uses when nothing happens.

Resident memory of both daemons is read with 1,000 jobs under way and again with many; the slope is the figure. Idle is
a site with 100 peers linked over mutual TLS, each of which follows it as a site does.
"""

import sys
import time
from collections.abc import Iterator

from benchmarks.federation_pair import Answering, Pair, Site, full, issue, pair
from benchmarks.row import Row

FEW, MANY, FULL_MANY = 1000, 20_000, 100_000
BYTES_BOUND = 2048.0
PEERS = 100
IDLE_S = 20.0
REST_S = 3.0
IDLE_BOUND = 2.0  # percent of one core
STARTED_S = 300.0


def measure() -> Iterator[Row]:
    yield from _memory()
    yield from _idle()


def _memory() -> Iterator[Row]:
    many = FULL_MANY if full() else MANY
    with pair() as made:
        made.start()
        few_edge, few_hpc = _with(made, FEW, 0)
        many_edge, many_hpc = _with(made, many, FEW)
    for what, before, after in (("origin", few_edge, many_edge), ("target", few_hpc, many_hpc)):
        yield Row(
            name=f"resident memory a job, {what}",
            value=(after - before) / (many - FEW),
            unit="bytes",
            bound=BYTES_BOUND,
            beside={"jobs": many, "mib_with_few": round(before / 2**20, 1), "mib_with_many": round(after / 2**20, 1)},
        )


def _with(made: Pair, jobs: int, known: int) -> tuple[float, float]:
    """Resident bytes of both, once the far backend has so many jobs."""
    made.edge.ask("fill", jobs=jobs - known)
    made.edge.ask("settled")
    _until_started(made.hpc, jobs)
    return made.edge.ask("used")["resident"], made.hpc.ask("used")["resident"]


def _until_started(site: Site, jobs: int) -> None:
    until = time.monotonic() + STARTED_S
    while site.ran.read_bytes().count(b"\n") < jobs:
        if time.monotonic() > until:
            raise RuntimeError(f"{site.folder.name} did not start {jobs} jobs")
        time.sleep(0.5)


def _idle() -> Iterator[Row]:
    with pair() as made:
        names = [f"peer{number}" for number in range(PEERS)]
        for name in names:
            issue(made.folder, name)
        text = made.hpc.config.read_text().replace(
            "peers: {", f"peers: {{{', '.join(f'{one}: {{}}' for one in names)}, "
        )
        made.hpc.config.write_text(text)
        made.hpc.start()
        argv = [sys.executable, "-m", "benchmarks.federation_peers", str(made.folder), str(made.port), *names]
        peers = Answering(argv=argv, log=made.edge.folder / "peers.log")
        try:
            peers.start()
            time.sleep(REST_S)
            used = made.hpc.used_s()
            time.sleep(IDLE_S)  # this is the measurement: an idle site is watched for so long
            percent = 100 * (made.hpc.used_s() - used) / IDLE_S
            resident = made.hpc.ask("used")["resident"]
        finally:
            peers.end()
    beside: dict[str, float | str] = {"peers": PEERS, "mib": round(resident / 2**20, 1)}
    yield Row(name=f"idle site with {PEERS} peers, CPU", value=percent, unit="%", bound=IDLE_BOUND, beside=beside)
