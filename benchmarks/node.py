"""Rows 3 and 5: what the hooks take of a job's time on a node, and what the agent takes of the node.

On a lab of one node a job runs the task prolog again and again; then its epilog and prolog are run in turn, so that a
prolog finds an idle slice. A timer in the place of each hook and of Slurm's commands writes down when the real one
started and ended: what Slurm took to answer the agent is told from the hooks' own time. Between two runs the other
daemons come to rest: on a real site slurmctld and the controller have another host.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.row import Row, percentile
from slurm_plugin.lab import commands
from slurm_plugin.lab.site import Lab, LabSpec

RUNS = 100
REST_S = 0.15
HOOKS = ("vgpu-prolog", "vgpu-taskprolog", "vgpu-epilog")
HOOK_BOUND_MS = 5.0
MEMORY_BOUND_MIB = 60.0
IDLE_CPU_BOUND = 0.5  # percent of one core
IDLE_S = 10.0
WAIT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    name: str
    start: int  # ns
    end: int


def measure() -> Iterator[Row]:
    with _lab() as (lab, env, base):
        folders = _install_timers(lab, base)
        _run_hooks(env, folders[0])
        spans = [span for folder in folders for span in _spans(folder)]
        for name in HOOKS:
            yield _hook_row(name, spans)
        yield from _agent_rows(_pid(lab, base))


def _run_hooks(env: dict[str, str], hooks: Path) -> None:
    task = f"for i in $(seq {RUNS}); do {hooks}/vgpu-taskprolog > /dev/null; sleep {REST_S}; done; exec sleep 600"
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=vgpu:1g.10gb:1", f"--wrap={task}"]
    job = subprocess.run(argv, env=env, cwd="/", check=True, capture_output=True, text=True).stdout.strip()
    _until(lambda: sum(span.name == "vgpu-taskprolog" for span in _spans(hooks)) >= RUNS)
    as_slurmd = {"PATH": env["PATH"], "SLURM_JOB_ID": job, "SLURM_JOB_UID": str(os.getuid())}
    for _ in range(RUNS):
        for name in ("vgpu-epilog", "vgpu-prolog"):
            ran = subprocess.run([hooks / name], env=as_slurmd, capture_output=True, text=True, timeout=WAIT_S)
            if ran.returncode or ran.stderr:
                raise RuntimeError(f"{name}: {ran.stderr.strip()}")
            time.sleep(REST_S)
    subprocess.run(["scancel", job], env=env, check=True)


@contextmanager
def _lab() -> Iterator[tuple[Lab, dict[str, str], Path]]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir="/run") as text:
        base = Path(text)
        base.chmod(0o755)
        try:
            lab = commands.up(LabSpec(name="bench", nodes=1, gpus=1), base)
            yield lab, {**os.environ, **commands.environment("bench", base)}, base
        finally:
            commands.down("bench", base)


def _install_timers(lab: Lab, base: Path) -> tuple[Path, Path]:
    """Put the timer in the place of the hooks, and of squeue for the agent. Returns the folders with the times."""
    node = lab.nodes[0]
    hooks, tools = lab.hooks(node), lab.folder / "timed"
    (tools / "real").mkdir(parents=True)
    for program in ("squeue", "scontrol", "scancel"):
        (tools / "real" / program).symlink_to(str(shutil.which(program)))
    (hooks / "real").mkdir()
    for file in [*hooks.glob("vgpu-*"), hooks / "hook.conf"]:
        file.rename(hooks / "real" / file.name)
    timer = tools / "timer"
    source = Path(__file__).with_name("timer.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", timer, source], check=True)
    for folder, names in ((hooks, HOOKS), (tools, ("squeue", "scontrol", "scancel"))):
        for name in names:
            shutil.copy(timer, folder / name)
        (folder / "times").touch()
        (folder / "times").chmod(0o666)
    with lab.agent_config(node).open("a") as config:
        config.write(f"slurm_bin: {tools}\n")
    before = _pid(lab, base)
    commands.kill(lab.name, f"agent:{node}", base)
    _until(lambda: _pid(lab, base) not in (0, before) and not commands.status(lab.name, base).lacks)
    return hooks, tools


def _spans(folder: Path) -> Iterator[Span]:
    for line in (folder / "times").read_text().splitlines():
        name, start, end = line.split()
        yield Span(name=name, start=int(start), end=int(end))


def _hook_row(name: str, spans: list[Span]) -> Row:
    """Own time: the hook's span less what of it was spent in Slurm's commands."""
    asked = [span for span in spans if span.name not in HOOKS]
    own, whole = [], []
    for hook in (span for span in spans if span.name == name):
        slurms = sum(max(0, min(hook.end, one.end) - max(hook.start, one.start)) for one in asked)
        whole.append((hook.end - hook.start) / 1e6)
        own.append((hook.end - hook.start - slurms) / 1e6)
    if len(own) < RUNS:
        raise RuntimeError(f"{name} ran {len(own)} times, not {RUNS}")
    beside: dict[str, float | str] = {
        "own_p50_ms": round(percentile(own, 0.5), 2),
        "with_slurm_p50_ms": round(percentile(whole, 0.5), 2),
        "with_slurm_p95_ms": round(percentile(whole, 0.95), 2),
        "runs": len(own),
    }
    return Row(name=f"{name}, own time p95", value=percentile(own, 0.95), unit="ms", bound=HOOK_BOUND_MS, beside=beside)


def _agent_rows(pid: int) -> Iterator[Row]:
    used = _cpu_s(pid)
    time.sleep(IDLE_S)  # this is the measurement: an idle agent is watched for so long
    percent = 100 * (_cpu_s(pid) - used) / IDLE_S
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(status["VmRSS"].split()[0]) / 1024
    beside: dict[str, float | str] = {"peak_mib": round(int(status["VmHWM"].split()[0]) / 1024, 1)}
    yield Row(name="agent, resident memory", value=memory, unit="MiB", bound=MEMORY_BOUND_MIB, beside=beside)
    yield Row(name="agent, CPU when idle", value=percent, unit="%", bound=IDLE_CPU_BOUND)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pid(lab: Lab, base: Path) -> int:
    daemons = commands.status(lab.name, base).daemons
    return next(daemon.pid for daemon in daemons if daemon.daemon.startswith("agent:"))


def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError("the lab did not get ready again")
        time.sleep(POLL_S)
