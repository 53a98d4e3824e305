"""What a chaos test is made of: jobs that tell what they see, people who submit them, and faults.

A job holds a lock named by each of its slices for as long as it runs, so two jobs with one slice are found by the jobs
themselves. Locks exist for the pool's slices only, so a job with any other is found too.
"""

import fcntl
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab import commands, processes, simgpu
from slurm_plugin.lab.site import Lab
from tests.e2e.live import Live

SUBMIT_TRIES = 20  # of one job, while there may be no slurmctld
SUBMIT_LIMIT_S = 60.0
DESTROY = "nvmlGpuInstanceDestroy"

# NAME SECONDS FOLDER SLICES: a line in FOLDER/told at the beginning, at the end, and for what must not be.
WORK = r"""#!/bin/sh
name=$1 seconds=$2 folder=$3 slices=$4
tell() {
    echo "$1 $name $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:-}" >>"$folder/told"
}
mine=$(echo "${CUDA_VISIBLE_DEVICES:-}" | tr , ' ')
[ "$(echo $mine | wc -w)" = "$slices" ] || { tell miscounted; exit 9; }
tell began
fd=3
for uuid in $mine; do
    [ -e "$folder/locks/$uuid" ] || { tell unknown; exit 9; }
    eval "exec $fd<\"\$folder/locks/\$uuid\""
    flock -n $fd || { tell shared; exit 9; }
    fd=$((fd + 1))
done
sleep "$seconds"
tell ended
"""
# A step needs slurmctld, so a job with steps tries again.
STEPS = "for try in 1 2 3 4 5 6 7 8 9 10; do srun {options} {work} 2>>{said} && exit 0; sleep 1; done; exit 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job. `slices` each of its parts sees, `parts` it has on each of its nodes."""

    gres: str
    options: tuple[str, ...] = ()
    srun: str = ""
    slices: int = 1
    nodes: int = 1
    parts: int = 1
    tasks: int = 1  # elements of the array
    fits: Callable[[str], bool]


def _at_least(memory_gb: int) -> Callable[[str], bool]:
    return lambda profile: int(profile.partition(".")[2].removesuffix("gb")) >= memory_gb


KINDS = (
    Kind(gres="vgpu", fits=_at_least(10)),
    Kind(gres="vgpu:10gb:2", slices=2, fits=_at_least(10)),
    Kind(gres="vgpu:20gb", fits=_at_least(20)),
    Kind(gres="vgpu:2g.20gb", fits=lambda profile: profile == "2g.20gb"),
    Kind(gres="vgpu:1/2", fits=_at_least(40)),
    Kind(gres="vgpu:10gb", tasks=4, options=("--array=1-4",), fits=_at_least(10)),
    Kind(gres="vgpu:20gb", nodes=2, options=("-N2",), srun="-N2", fits=_at_least(20)),
    Kind(gres="", slices=0, fits=_at_least(0)),
    Kind(gres="vgpu:1g.10gb:2", parts=2, options=("-n2",), srun="-n2", fits=lambda profile: profile == "1g.10gb"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to submit. Its elements are named `<name>` or `<name>_<element>`."""

    name: str
    kind: Kind
    seconds: float

    @property
    def jobs(self) -> tuple[str, ...]:
        return (
            tuple(f"{self.name}_{task}" for task in range(1, self.kind.tasks + 1))
            if self.kind.tasks > 1
            else (self.name,)
        )


def orders(user: str, count: int, rng: random.Random) -> list[Order]:
    """Jobs of one user, `count` with all elements of arrays."""
    made: list[Order] = []
    left = count
    while left > 0:
        kind = rng.choice([kind for kind in KINDS if kind.tasks <= left])
        made.append(Order(name=f"{user}{len(made)}", kind=kind, seconds=round(rng.uniform(0.5, 3.0), 1)))
        left -= kind.tasks
    return made


class Ground:
    """Where the jobs of one chaos test leave what they see."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.folder = live.lab.folder / "chaos"
        self.slices = live.slices()
        self.destroyed = self._destroyed()
        locks = self.folder / "locks"
        locks.mkdir(parents=True)
        for uuid in self.slices:
            (locks / uuid).touch()
        (self.folder / "said").mkdir()
        (self.folder / "said").chmod(0o777)
        self.told_file = self.folder / "told"
        self.told_file.touch()
        self.told_file.chmod(0o666)
        self.work = self.folder / "work"
        self.work.write_text(WORK)
        self.work.chmod(0o755)

    def script(self, order: Order) -> str:
        name = f"{order.name}_$SLURM_ARRAY_TASK_ID" if order.kind.tasks > 1 else order.name
        work = f"{self.work} {name} {order.seconds} {self.folder} {order.kind.slices}"
        said = self.folder / "said" / order.name
        return STEPS.format(options=order.kind.srun, work=work, said=said) if order.kind.srun else f"exec {work}"

    def told(self) -> list[list[str]]:
        """(what, name, job id, restarts, node, slices) of each line."""
        return [(line + " ").split(" ")[:6] for line in self.told_file.read_text().splitlines()]

    def told_by(self, job: str) -> list[list[str]]:
        return [line for line in self.told() if line[1] == job]

    def said_by(self, job: str) -> list[str]:
        """What its srun said."""
        path = self.folder / "said" / job
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def held(self) -> list[str]:
        """Slices that a job still has locked."""
        return [path.name for path in (self.folder / "locks").iterdir() if _locked(path)]

    def untouched(self) -> bool:
        """Every slice is the one it was at the beginning."""
        return self.live.slices() == self.slices and self._destroyed() == self.destroyed

    def _destroyed(self) -> int:
        lab = self.live.lab
        return sum(simgpu.snapshot(lab.sim_state(node)).calls.get(DESTROY, 0) for node in lab.nodes)

    def faults_of(self, order: Order, job: str) -> list[str]:
        """What is wrong with what a completed job has told."""
        kind, mine = order.kind, self.told_by(job)
        ended = [
            (node, tuple(filter(None, uuids.split(",")))) for what, _, _, _, node, uuids in mine if what == "ended"
        ]
        wrong = [f"{job}: {' '.join(line)}" for line in mine if line[0] not in ("began", "ended")]
        if len(ended) < kind.nodes * kind.parts or len({node for node, _ in ended}) < kind.nodes:
            wrong.append(f"{job}: ended as {ended}")
        for node, uuids in ended:
            profiles = [self.slices[uuid].profile for uuid in uuids if uuid in self.slices]
            if len(profiles) != kind.slices or not all(map(kind.fits, profiles)):
                wrong.append(f"{job}: {kind.gres} had {profiles} on {node}")
        return wrong


def _locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@dataclass(slots=True)
class Crowd:
    """People who submit, each in a thread of his own. `submitted` has an order for each sbatch that may have worked."""

    ground: Ground
    over: threading.Event = field(default_factory=threading.Event)
    submitted: list[Order] = field(default_factory=list)
    unanswered: int = 0

    def submit_all(self, user: str, wanted: Sequence[Order], rng: random.Random, within_s: float) -> None:
        pause_s = within_s / len(wanted)
        for order in wanted:
            self.over.wait(rng.uniform(0.2, 1.8) * pause_s)
            for attempt in range(SUBMIT_TRIES):
                named = Order(name=f"{order.name}.{attempt}", kind=order.kind, seconds=order.seconds)
                self.submitted.append(named)
                if self.over.is_set() or self._sbatch(user, named):
                    break
                self.unanswered += 1
                self.over.wait(1.0)

    def _sbatch(self, user: str, order: Order) -> bool:
        options = ["--output=/dev/null", f"--job-name={order.name}", *order.kind.options]
        options += [f"--gres={order.kind.gres}"] if order.kind.gres else []
        script = f"--wrap={self.ground.script(order)}"
        with suppress(subprocess.TimeoutExpired):
            return self.ground.live.run(user, "sbatch", *options, script, limit_s=SUBMIT_LIMIT_S).code == 0
        return False


RECONFIGURE = "reconfigure"


def storm(live: Live, count: int, rng: random.Random) -> list[str]:
    """What befalls the lab, in order: every kind as often as every other."""
    kinds = [["slurmctld"], [RECONFIGURE], ["controller"]]
    kinds += [[f"{daemon}:{node}" for node in live.lab.nodes] for daemon in ("slurmd", "agent")]
    events = [rng.choice(kinds[number % len(kinds)]) for number in range(count)]
    rng.shuffle(events)
    return events


def strike(live: Live, event: str) -> bool:
    """False when there was nothing to hit: it was down."""
    if event == RECONFIGURE:
        argv = ["scontrol", "reconfigure"]
        return subprocess.run(argv, env=live.env, capture_output=True, timeout=60, check=False).returncode == 0
    return _killed(live.lab, event)


class Storm:
    """What befalls many victims at once. Each has a thread of its own, and recovers before it is hit again."""

    def __init__(
        self, victims: Mapping[str, Callable[[random.Random], None]], seed: int, within_s: float, strikes: int
    ) -> None:
        self.victims, self._seed, self._within_s, self._strikes = victims, seed, within_s, strikes
        self.hits: Counter[str] = Counter()

    def works(self) -> list[Callable[[], None]]:
        return [partial(self._rage, name) for name in self.victims]

    def _rage(self, name: str) -> None:
        rng = random.Random(f"{self._seed} {name}")
        until = time.monotonic() + self._within_s
        for left in range(self._strikes, 0, -1):
            time.sleep(max(0.0, rng.uniform(0.2, 1.8) * (until - time.monotonic()) / left))
            self.victims[name](rng)
            self.hits[name] += 1


def kill(lab: Lab, daemon: str) -> None:
    """One of a lab's daemons, as soon as it is up."""
    assert processes.wait_until(partial(_killed, lab, daemon), limit_s=60.0)


def _killed(lab: Lab, daemon: str) -> bool:
    """False when it was down."""
    try:
        commands.kill(lab.name, daemon, lab.folder.parent)
    except LabError:
        return False
    return True


@contextmanager
def beside(*works: Callable[[], None], over: Sequence[threading.Event]) -> Iterator[list[threading.Thread]]:
    """These run in threads of their own; at the end they are told that it is over, and waited for."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for event in over:
            event.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def seed_of_this_run(name: str = "VGPU_CHAOS_SEED") -> int:
    """One that somebody asked for, to see a run again, or a new one."""
    return int(os.environ.get(name) or random.SystemRandom().randrange(1_000_000))
