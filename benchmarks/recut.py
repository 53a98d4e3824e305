"""From a job's submission to its first line when a GPU must be re-cut for it, in a lab, and whose time that is.

The daemons' own logs tell when the plan was made, its step was sent and made, and the slice was published. What comes
before that is ours; from then on Slurm starts the job, with our prolog in between. The lab's GPUs are simulated and
take no time; a real one needs some tenths of a second to make an instance.
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from benchmarks.row import Row, percentile
from slurm_plugin.lab import commands
from slurm_plugin.lab.site import Lab, LabSpec

ROUNDS = 12
PROFILES = ("7g.80gb", "4g.40gb")  # in turn, so that each needs a re-cut
PLANNING = "planning: {follow: queue, batch_window_s: 0, hysteresis_s: 0}\n"
START_S = 30.0
POLL_S = 0.02
BOUND_MS = 1000.0
PARTS = ("seen and planned", "withheld", "made", "published", "Slurm and prolog")

_LINE = re.compile(r"^(\S+ \S+) INFO (\S+)", re.MULTILINE)


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir="/run") as text:
        base = Path(text)
        base.chmod(0o755)
        try:
            lab = commands.up(LabSpec(name="bench", nodes=1, gpus=1), base)
            took = _rounds(lab, base)
        finally:
            commands.down("bench", base)
    ours = [sum(one[:-1]) for one in took]
    split = {f"{name}, ms": round(percentile([one[nth] for one in took], 0.5)) for nth, name in enumerate(PARTS)}
    whole = [sum(one) for one in took]
    yield Row(
        name="a job that needs a re-cut: ours, p50",
        value=percentile(ours, 0.5),
        unit="ms",
        bound=BOUND_MS,
        beside={
            **split,
            "p95_ms": round(percentile(ours, 0.95)),
            "to its first line, ms": round(percentile(whole, 0.5)),
        },
    )


def _rounds(lab: Lab, base: Path) -> list[list[float]]:
    env = commands.environment("bench", base)
    lab.pool_config.write_text(lab.pool_config.read_text() + PLANNING)
    subprocess.run(["vgpu", "apply"], env=env, check=True, capture_output=True, timeout=60)
    return [_round(lab, env, PROFILES[nth % len(PROFILES)]) for nth in range(ROUNDS)]


def _round(lab: Lab, env: dict[str, str], profile: str) -> list[float]:
    """How long each part took, in ms."""
    told = lab.folder / "told"
    told.unlink(missing_ok=True)
    job = f"date +%s.%N > {told}.new && mv {told}.new {told}"
    at = [time.time()]
    argv = ["sbatch", "--wait", "--output=/dev/null", f"--gres=vgpu:{profile}", f"--wrap={job}"]
    subprocess.run(argv, env=env, check=True, capture_output=True, timeout=START_S)
    events = sorted(_events(lab.log / "controller.out") + _events(lab.log / "agent-n1.out"))
    for name in ("recut.planned", "step.sent", "step.made", "gres.published"):
        at.append(next(when for when, what in events if what == name and when >= at[-1] - POLL_S))
    at.append(float(told.read_text()))
    return [1000 * (after - before) for before, after in pairwise(at)]


def _events(path: Path) -> list[tuple[float, str]]:
    """(Unix seconds, event) of each line of a daemon's log."""
    return [
        (datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp(), what)
        for when, what in _LINE.findall(path.read_text())
    ]
