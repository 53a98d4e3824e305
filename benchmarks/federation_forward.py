"""Row 6: jobs from one site to another, durable at both ends, beside a bare gRPC echo and a loop of `ssh host sbatch`.

Two real daemons on loopback with mutual TLS and their journals on a disk; the far one's pool takes every job and runs
none. A forward is over when the near site has, durable, that the far one has the job, durable. Rounds of both are
interleaved. CPU is of whole processes, with gRPC's own threads.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.federation_pair import Answering, Pair, bare, full, pair
from benchmarks.row import Row, percentile
from benchmarks.slurmctld import controller, munged
from benchmarks.sshd import sshd

ROUNDS = 7
JOBS = 1000  # of a round, at once
WARM_UP = 300
STEADY_JOBS, STEADY_PER_S = 1500, 500.0
SYNCS, SYNC_BYTES = 300, 4096  # before the steady ones, and after them
SSH_CALLS = 3  # of a round
ECHOES_A_FORWARD = 2.0  # a forward takes at most as long as so many bare echoes
FORWARD_BOUND_MS = 1.0
P99_BOUND_MS = 25.0
SSH_BOUND = 0.01
FULL = 10  # times as many rounds' jobs
SLURM = """NodeName=n[1-8] NodeAddr=127.0.0.1 Port=[6001-6008] CPUs=64 RealMemory=512000 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES State=UP
"""


@dataclass(slots=True)
class Times:
    """Of each round, of one thing: seconds, and CPU seconds of both ends."""

    wall: list[float] = field(default_factory=list)
    near: list[float] = field(default_factory=list)
    far: list[float] = field(default_factory=list)

    def wall_ms(self) -> float:
        return 1000 * statistics.median(self.wall)

    def cpu_us(self) -> tuple[float, float]:
        return 1e6 * statistics.median(self.near), 1e6 * statistics.median(self.far)


def measure() -> Iterator[Row]:
    with ExitStack() as stack:
        made = stack.enter_context(pair())
        made.start()
        server, client = stack.enter_context(bare(made))
        ssh = stack.enter_context(_ssh())
        made.edge.ask("forward", jobs=WARM_UP, rate=0)
        client.ask("calls", count=WARM_UP)
        forwards, echoes, sshes = Times(), Times(), []
        jobs = JOBS * (FULL if full() else 1)
        for _ in range(ROUNDS):
            _round(forwards, made.edge, made.hpc, jobs, lambda: made.edge.ask("forward", jobs=jobs, rate=0)["s"])
            _round(echoes, client, server, jobs, lambda: client.ask("calls", count=jobs)["s"])
            sshes += [ssh() for _ in range(SSH_CALLS)]
        yield from _rows(forwards, echoes, sshes)
        yield from _steady(made)


def _round(times: Times, near: Answering, far: Answering, count: int, call: Callable[[], float]) -> None:
    near_s, far_s = near.used_s(), far.used_s()
    times.wall.append(call() / count)
    times.near.append((near.used_s() - near_s) / count)
    times.far.append((far.used_s() - far_s) / count)


def _rows(forwards: Times, echoes: Times, sshes: list[float]) -> Iterator[Row]:
    ours, bare_echo = forwards.cpu_us(), echoes.cpu_us()
    beside: dict[str, float | str] = {
        "forwards_per_s": round(1 / statistics.median(forwards.wall)),
        "worst_round_per_s": round(1 / max(forwards.wall)),
        "best_round_per_s": round(1 / min(forwards.wall)),
        "cpu_us_near": round(ours[0]),
        "cpu_us_far": round(ours[1]),
    }
    yield Row(name="forward", value=forwards.wall_ms(), unit="ms", bound=FORWARD_BOUND_MS, beside=beside)
    ratios = [one / other for one, other in zip(forwards.wall, echoes.wall, strict=True)]
    yield Row(
        name="forward / bare gRPC echo",
        value=statistics.median(ratios),
        unit="ratio",
        bound=ECHOES_A_FORWARD,
        beside={
            "echoes_per_s": round(1 / statistics.median(echoes.wall)),
            "lowest": round(min(ratios), 2),
            "highest": round(max(ratios), 2),
        },
    )
    yield Row(
        name="forward / bare gRPC echo, CPU of both ends",
        value=sum(ours) / sum(bare_echo),
        unit="ratio",
        beside={"echo_cpu_us_near": round(bare_echo[0]), "echo_cpu_us_far": round(bare_echo[1])},
    )
    yield Row(
        name="forward / ssh host sbatch",
        value=statistics.median(forwards.wall) / statistics.median(sshes),
        unit="ratio",
        bound=SSH_BOUND,
        beside={"ssh_sbatch_ms": round(1000 * statistics.median(sshes), 1), "calls": len(sshes)},
    )


def _steady(made: Pair) -> Iterator[Row]:
    """At half the rate, each job on its own: until it is acknowledged, and until the far backend has it."""
    disk = _syncs(made.folder)
    found = made.edge.ask("forward", jobs=STEADY_JOBS, rate=STEADY_PER_S)
    disk += _syncs(made.folder)
    waits = [1000 * one for one in found["waits"]]
    yield Row(
        name=f"forward at {STEADY_PER_S:.0f}/s, p99 to the acknowledgement",
        value=percentile(waits, 0.99),
        unit="ms",
        bound=P99_BOUND_MS,
        beside={
            "p50_ms": round(percentile(waits, 0.5), 2),
            "jobs": STEADY_JOBS,
            "disk_p50_ms": round(percentile(disk, 0.5), 2),
            "disk_p99_ms": round(percentile(disk, 0.99), 2),
        },
    )
    started = {line.split("/")[0]: float(line.split()[1]) for line in made.hpc.ran.read_text().splitlines()}
    to_start = [1000 * (started[token] - at) for token, at in found["submitted"].items()]
    yield Row(
        name=f"submit to remote start at {STEADY_PER_S:.0f}/s, p99",
        value=percentile(to_start, 0.99),
        unit="ms",
        beside={"p50_ms": round(percentile(to_start, 0.5), 2), "jobs": len(to_start)},
    )


def _syncs(folder: Path) -> list[float]:
    """How long the disk itself takes to make 4 KiB durable in a file that has its size: milliseconds. A forward waits
    for three of those, one after the other.
    """
    block, found = os.urandom(SYNC_BYTES), []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(SYNC_BYTES * SYNCS))
        os.fsync(file.fileno())
        for nth in range(SYNCS):
            os.pwrite(file.fileno(), block, SYNC_BYTES * nth)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(1000 * (time.perf_counter() - began))
    return found


@contextmanager
def _ssh() -> Iterator[Callable[[], float]]:
    """A call that submits one held job through a new ssh connection, as a loop in a shell does, and tells its time."""
    with tempfile.TemporaryDirectory(prefix="fed-bench-", dir="/run") as text, ExitStack() as stack:
        folder = Path(text)
        folder.chmod(0o755)
        socket = stack.enter_context(munged(folder / "munge"))
        slurm = stack.enter_context(controller(folder / "slurm", socket, lines=SLURM))
        host = stack.enter_context(sshd(folder / "sshd", f"SetEnv SLURM_CONF={slurm.conf}"))
        yield lambda: host.run("sbatch --parsable -H --wrap true")
