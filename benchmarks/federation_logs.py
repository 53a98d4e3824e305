"""Row 7: what a job writes at one site, at another one: beside scp, and beside a bare gRPC stream with mutual TLS, both
when it is written to a file, as ours is, and when it is thrown away.

Both daemons are real, the file lies where the far backend says. Then many jobs write lines, and each line's age is
taken when it is here. Then a stream is followed while both daemons are killed (-9), and no byte may differ.
"""

import os
import pwd
import random
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.federation_pair import Answering, Pair, bare, full, pair
from benchmarks.federation_site import USER
from benchmarks.row import Row, percentile
from benchmarks.sshd import Host, sshd

ROUNDS = 7
SIZE, FULL_SIZE = 64 << 20, 1 << 30
SCP_BOUND, BARE_BOUND, CPU_BOUND = 1 / 1.2, 1 / 0.8, 1.0
WRITERS, LINES_PER_S, WRITE_S, BEAT_S = 50, 10_000, 5.0, 0.02
LAG_BOUND_MS = 250.0
KILLS = 4
KILL_BYTES = 32 << 20


def measure() -> Iterator[Row]:
    with ExitStack() as stack:
        made = stack.enter_context(pair())
        outputs = made.folder / "outputs"
        outputs.mkdir(mode=0o755)
        made.start()
        server, client = stack.enter_context(bare(made))
        host = stack.enter_context(sshd(made.folder / "sshd"))
        yield from _speed(made, (server, client), host, outputs)
        yield _lag(made, outputs)
        yield _killed(made, outputs)


def _speed(made: Pair, ends: tuple[Answering, Answering], host: Host, outputs: Path) -> Iterator[Row]:
    server, client = ends
    size = FULL_SIZE if full() else SIZE
    tokens = _jobs(made, ROUNDS)
    source = outputs / "log"
    source.write_bytes(random.Random(7).randbytes(1 << 20) * (size >> 20))
    _given(source)
    ours, copies, streams, thrown_away = [], [], [], []
    cpu, copies_cpu, streams_cpu = [], [], []
    for token in tokens:
        written = outputs / f"{token}.out"
        shutil.copyfile(source, written)
        _given(written)
        used = made.hpc.used_s()
        found = made.edge.ask("follow", token=token, size=size)
        ours.append(found["s"])
        cpu.append(found["cpu_s"] + made.hpc.used_s() - used)
        for one in (Path(found["file"]), written):
            one.unlink()
        used = host.used_s()
        copies.append(host.copy(source, made.folder / "copy"))
        copies_cpu.append(host.used_s() - used)
        thrown_away.append(client.ask("take", size=size, path=os.devnull)["s"])
        used = server.used_s()
        found = client.ask("take", size=size, path=str(made.folder / "copy"))
        streams.append(found["s"])
        streams_cpu.append(found["cpu_s"] + server.used_s() - used)
    gigabytes = size / 1e9
    beside: dict[str, float | str] = {
        "mb_per_s": round(size / 1e6 / statistics.median(ours)),
        "scp_mb_per_s": round(size / 1e6 / statistics.median(copies)),
        "bare_mb_per_s": round(size / 1e6 / statistics.median(streams)),
        "bare_thrown_away_mb_per_s": round(size / 1e6 / statistics.median(thrown_away)),
        "cpu_s_per_gb": round(statistics.median(cpu) / gigabytes, 2),
        "scp_cpu_s_per_gb": round(statistics.median(copies_cpu) / gigabytes, 2),
        "bare_cpu_s_per_gb": round(statistics.median(streams_cpu) / gigabytes, 2),
    }
    ratio = statistics.median(one / other for one, other in zip(cpu, copies_cpu, strict=True))
    yield Row(name="output, CPU of both ends / scp", value=ratio, unit="ratio", bound=CPU_BOUND, beside=beside)
    against = (
        ("scp", copies, SCP_BOUND),
        ("bare gRPC stream to a file", streams, BARE_BOUND),
        ("bare gRPC stream thrown away", thrown_away, None),
    )
    for name, others, bound in against:
        ratio = statistics.median(one / other for one, other in zip(ours, others, strict=True))
        yield Row(name=f"output, time / {name}", value=ratio, unit="ratio", bound=bound, beside=beside)


def _lag(made: Pair, outputs: Path) -> Row:
    tokens, beats = _jobs(made, WRITERS), round(WRITE_S / BEAT_S)
    a_beat = round(LINES_PER_S * BEAT_S / WRITERS)
    files = [(outputs / f"{token}.out").open("wb", buffering=0) for token in tokens]
    for token in tokens:
        _given(outputs / f"{token}.out")
    made.edge.tell("lags", tokens=tokens, lines=beats * a_beat)
    start = time.perf_counter()
    for beat in range(beats):
        time.sleep(max(0.0, start + beat * BEAT_S - time.perf_counter()))
        for file in files:
            file.write(f"{time.time():.6f} a line as a program writes them\n".encode() * a_beat)
    lags = [1000 * one for one in made.edge.answer()["lags"]]
    for file in files:
        file.close()
    return Row(
        name=f"output lines of {WRITERS} jobs, age p99",
        value=percentile(lags, 0.99),
        unit="ms",
        bound=LAG_BOUND_MS,
        beside={"p50_ms": round(percentile(lags, 0.5), 1), "lines_per_s": LINES_PER_S, "lines": len(lags)},
    )


def _killed(made: Pair, outputs: Path) -> Row:
    """A part is written, then either daemon is killed while it comes, and so on."""
    chance, (token,) = random.Random(9), _jobs(made, 1)
    data = chance.randbytes(KILL_BYTES)
    path, part = outputs / f"{token}.out", KILL_BYTES // KILLS
    path.touch()
    _given(path)
    for number in range(KILLS):
        made.edge.tell("follow", token=token, size=KILL_BYTES)
        with path.open("ab") as file:
            file.write(data[number * part : (number + 1) * part])
        site = (made.hpc, made.edge)[number % 2]
        time.sleep(chance.uniform(0.0, 0.3))
        made.edge.end(signal.SIGKILL)
        if site is made.hpc:
            made.hpc.end(signal.SIGKILL)
            made.hpc.start()
        made.edge.start()
        made.edge.ask("linked", site="hpc")
    found = made.edge.ask("follow", token=token, size=KILL_BYTES)
    here = Path(found["file"]).read_bytes()
    wrong = sum(one != other for one, other in zip(here, data, strict=False)) if here != data else 0
    return Row(
        name=f"output bytes wrong, missing or double after {KILLS} kills",
        value=float(wrong + abs(len(here) - len(data))),
        unit="bytes",
        bound=0.0,
        beside={"bytes": len(data)},
    )


def _jobs(made: Pair, count: int) -> list[str]:
    return list(made.edge.ask("forward", jobs=count, rate=0)["submitted"])


def _given(path: Path) -> None:
    """It is the user's that the jobs run as."""
    account = pwd.getpwnam(USER)
    os.chown(path, account.pw_uid, account.pw_gid)
