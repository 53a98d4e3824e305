"""Jobs of a Slurm that run at another site: two real daemons with mutual TLS, proxies as slurmstepd starts them.

Slurm's commands are small scripts that answer at once, so what is measured is the gateway and the federation. How long
a job takes from its hello to its first line there, and to each step between; how fast its output comes, beside `cat`
through a pipe to the same file; what jobs that run and say nothing cost the daemons; how fast a thousand end together.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.federation_pair import full
from benchmarks.row import Row, percentile
from federation.overflow.frames import Hello
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import Pair, Site, pair
from tests.integration.federation.overflow.commands import install, running
from tests.integration.federation.overflow.gate import USER, Proxy, uid_of

SPANK = Path(__file__).parents[1] / "slurm_plugin/spank"
NODE = "cloud-hpc-1"
STARTS, WARM, START_BOUND_MS = 100, 5, 150.0
SIZE, FULL_SIZE, ROUNDS, RELAY_BOUND = 128 << 20, 1 << 30, 3, 2.0
MANY, FULL_MANY = 200, 1000
REST_S, IDLE_S = 10.0, 20.0
RELEASED_S = 0.5  # until all that wait have seen it open
POOL = "{{local: {{folder: {spool}, cpus: 4096}}}}"
OVERFLOW = """overflow:
  cluster: lab
  bin_dir: {folder}/bin
  socket: {folder}.gateway
  nodes:
    cloud-hpc: {{count: 1, pool: hpc/batch, gateway: gw1, most_jobs: 2000}}
"""
_FIELD_LENGTH = 4


def measure() -> Iterator[Row]:
    ensure_people()
    subprocess.run(["make", "-s", "-C", str(SPANK), "build/vgpu-proxy"], check=True)
    many = FULL_MANY if full() else MANY
    with _sites(STARTS + 10 + many) as both:
        yield from _starts(both)
        yield from _relay(both)
        yield from _crowd(both, many)


@contextmanager
def _sites(jobs: int) -> Iterator[Pair]:
    def prepare(folder: Path) -> None:
        table = [running(nth, uid_of(USER), NODE, "cloud") for nth in range(1, jobs + 1)]
        install(folder / "edge/bin", table)

    with pair(POOL, f"nobody, {USER}: {USER}", OVERFLOW, prepare) as found:
        os.chown(found.home, uid_of(USER), uid_of(USER))
        yield found


# -- one after another


def _starts(both: Pair) -> Iterator[Row]:
    whole = list[float]()
    parts = {"welcome": list[float](), "start": list[float](), "first_line": list[float]()}
    asyncio.run(_one_by_one(both, whole, parts))
    for some in (whole, *parts.values()):
        del some[:WARM]
    beside: dict[str, float | str] = {"p50_ms": round(statistics.median(whole), 1)}
    for name, some in parts.items():
        beside[f"{name}_p50_ms"] = round(statistics.median(some), 1)
        beside[f"{name}_p95_ms"] = round(percentile(some, 0.95), 1)
    yield Row(
        name="burst, hello to remote start, p95",
        value=percentile(whole, 0.95),
        unit="ms",
        bound=START_BOUND_MS,
        beside=beside,
    )


async def _one_by_one(both: Pair, whole: list[float], parts: dict[str, list[float]]) -> None:
    for nth in range(1, STARTS + 1):
        hello = Hello(job_id=nth, node=NODE, folder=bytes(both.home), script=b"#!/bin/sh\ndate +%s%N\n")
        proxy = Proxy(both.edge.folder.with_suffix(".gateway"), hello, USER)
        begun = time.time()
        ending = asyncio.create_task(proxy.run())
        await proxy.welcomed.wait()
        welcomed = time.time()
        while not proxy.output:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        seen = time.time()
        await ending
        started = int(proxy.output) / 1e9
        parts["welcome"].append(1000 * (welcomed - begun))
        parts["start"].append(1000 * (started - welcomed))
        parts["first_line"].append(1000 * (seen - started))
        whole.append(1000 * (started - begun))


# -- bytes


def _relay(both: Pair) -> Iterator[Row]:
    size = FULL_SIZE if full() else SIZE
    ours, again, cats = [], [], []
    with tempfile.TemporaryDirectory(dir=both.home) as name:
        folder = Path(name)
        for nth in range(ROUNDS):
            job = STARTS + 1 + nth
            ours.append(_timed(both, job, b"#!/bin/sh\nhead -c %d /dev/zero\n" % size, folder / f"{nth}"))
            again.append(_timed(both, job, b"#!/bin/sh\n", folder / f"{nth}.again"))
            begun = time.perf_counter()
            subprocess.run(["sh", "-c", f"cat {nth} | cat > {nth}.cat"], cwd=folder, check=True)
            cats.append(time.perf_counter() - begun)
            for one in folder.iterdir():
                assert one.stat().st_size in (0, size), one
                one.unlink()
    rates = {"cat": cats, "relay": again, "from_the_far_job": ours}
    beside: dict[str, float | str] = {
        f"{what}_mb_per_s": round(size / 1e6 / statistics.median(some)) for what, some in rates.items()
    }
    for what, some, bound in (
        ("output that is here", again, RELAY_BOUND),
        ("output as it is written there", ours, None),
    ):
        ratio = statistics.median(one / other for one, other in zip(some, cats, strict=True))
        yield Row(name=f"{what}, time / cat | cat > file", value=ratio, unit="ratio", bound=bound, beside=beside)


def _timed(both: Pair, job: int, script: bytes, out: Path) -> float:
    begun = time.perf_counter()
    proxy = _proxy(both, job, script, out)
    assert proxy.wait(300) == 0
    return time.perf_counter() - begun


def _proxy(both: Pair, job: int, script: bytes, out: Path) -> "subprocess.Popen[bytes]":
    """As the gateway's plugin starts it: what the job is, and its script, open as 3 and 4."""
    facts = b"".join(
        bytes([tag]) + len(value).to_bytes(_FIELD_LENGTH, "big") + value
        for tag, value in ((2, b"%d" % job), (5, b"0"), (6, NODE.encode()))
    )
    files = [_held(facts), _held(script)]
    with out.open("ab") as output, Path(f"{out}.err").open("ab") as errors:
        uid = uid_of(USER)
        words = [
            str(SPANK / "build/vgpu-proxy"),
            str(both.edge.folder.with_suffix(".gateway")),
            str(os.getpid()),
            str(job),
        ]
        shell = f"exec {' '.join(words)} 3<&{files[0]} 4<&{files[1]}"
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", "sh", "-c", shell]
        proxy = subprocess.Popen(argv, cwd=both.home, stdout=output, stderr=errors, pass_fds=files)
    for one in files:
        os.close(one)
    return proxy


def _held(data: bytes) -> int:
    handle = os.memfd_create("held", 0)
    os.write(handle, data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


# -- many at once


def _crowd(both: Pair, many: int) -> Iterator[Row]:
    go = both.home / "go"
    os.mkfifo(go)
    go.chmod(0o644)
    script = b"#!/bin/sh\nexec cat %s\n" % bytes(go)  # until somebody has written to it, and closed it
    out = Path(tempfile.mkdtemp(dir=both.home))
    known = len(list((both.hpc.folder.parent / "spool").iterdir()))
    before = [_resident(site) for site in both.sites]
    first = STARTS + 1 + ROUNDS
    begun = time.perf_counter()
    proxies = [_proxy(both, first + nth, script, out / str(nth)) for nth in range(many)]
    _until_started(both, many, known)
    started_s = time.perf_counter() - begun
    time.sleep(REST_S)
    used = [_used_s(site) for site in both.sites]
    time.sleep(IDLE_S)  # this is the measurement: jobs that say nothing are watched for so long
    idle = [100 * (_used_s(site) - one) / IDLE_S for site, one in zip(both.sites, used, strict=True)]
    memory = [(_resident(site) - one) / many for site, one in zip(both.sites, before, strict=True)]
    proxy_kib = _pss_kib(proxies[0].pid)
    used = [_used_s(site) for site in both.sites]
    begun = time.perf_counter()
    with go.open("r+b", buffering=0):
        time.sleep(RELEASED_S)
    codes = [one.wait(600) for one in proxies]
    drained_s = time.perf_counter() - begun
    cpu = [_used_s(site) - one for site, one in zip(both.sites, used, strict=True)]
    assert codes == [0] * many, codes
    shutil.rmtree(out)
    beside: dict[str, float | str] = {
        "jobs": many,
        "begun_per_s": round(many / started_s, 1),
        "far_daemon_kib_a_job": round(memory[1] / 1024, 1),
        "proxy_pss_kib": proxy_kib,
        "near_idle_percent": round(idle[0], 1),
        "far_idle_percent": round(idle[1], 1),
        "near_cpu_ms_an_end": round(1000 * cpu[0] / many, 1),
        "far_cpu_ms_an_end": round(1000 * cpu[1] / many, 1),
    }
    yield Row(name="daemon's memory a forwarded job", value=memory[0] / 1024, unit="KiB", bound=None, beside=beside)
    yield Row(
        name=f"CPU of {many} quiet forwarded jobs, both daemons", value=sum(idle), unit="%", bound=None, beside=beside
    )
    yield Row(name=f"{many} forwarded jobs that end together", value=drained_s, unit="s", bound=None, beside=beside)


def _until_started(both: Pair, many: int, before: int) -> None:
    """Every attempt that has begun has a claim, which leads nowhere."""
    spool, until = both.hpc.folder.parent / "spool", time.monotonic() + 600
    while sum((one / "claim").is_symlink() for one in spool.iterdir()) < before + many:
        assert time.monotonic() < until
        time.sleep(0.1)


def _pid(site: Site) -> int:
    assert site.process is not None
    return site.process.pid


def _used_s(site: Site) -> float:
    words = Path(f"/proc/{_pid(site)}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _resident(site: Site) -> int:
    return int(Path(f"/proc/{_pid(site)}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
