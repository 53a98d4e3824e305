"""A running lab with the pool, as tests use it: people who submit, and looks at what really is."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slurm_plugin.lab import commands, processes, simgpu
from slurm_plugin.lab.people import as_person
from slurm_plugin.lab.simgpu import SimInstance
from slurm_plugin.lab.site import Lab

LIMIT_S = 20.0
READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
SEE = 'echo "sees $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-nothing}"'  # a line of a job's output
_SEES = re.compile(r"sees (\S+) (\S*)")
TOTAL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str


class Live:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.base = lab.folder.parent
        self.env = commands.environment(lab.name, self.base)
        self._first_policy = lab.pool_config.read_text() if lab.spec.pool else ""

    # What people do

    def home(self, user: str) -> Path:
        home = self.lab.folder / "home" / user
        if not home.exists():
            home.mkdir(parents=True)
            shutil.chown(home, user, user)
        return home

    def run(self, user: str, *argv: str, limit_s: float = 60.0, **env: str) -> Ran:
        """One command, as this user, in the user's own folder."""
        home = self.home(user)
        done = subprocess.run(
            as_person(user, argv),
            env=self.env | {"HOME": str(home), "USER": user} | env,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def submit(self, user: str, *options: str, script: str = f"{SEE}; exec sleep 1000") -> str:
        """The job's id. Its output is in `<id>.out` in the user's folder, an array task's in `<id>_<task>.out`."""
        pattern = "%A_%a.out" if any(option.startswith("--array") for option in options) else "%j.out"
        ran = self.run(user, "sbatch", "--parsable", f"--output={pattern}", *options, f"--wrap={script}")
        assert ran.code == 0, ran.err
        return ran.out.strip()

    def output(self, user: str, name: str) -> str:
        path = self.home(user) / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def wait_sees(self, user: str, job: str, count: int = 1) -> list[tuple[str, tuple[str, ...]]]:
        """(node, slices) of each of the job's first `count` lines of SEE."""
        self.until(lambda: len(_SEES.findall(self.output(user, job))) >= count, f"job {job} says what it sees")
        return seen(self.output(user, job))

    # What is

    def slurm(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.env, cwd="/", capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def state(self, job: str) -> str:
        return self.slurm("squeue", "--noheader", "--states=all", "--jobs", job, "--format=%T")

    def started_at(self, job: str) -> int:
        """Unix seconds."""
        text = self.slurm("squeue", "--noheader", "--jobs", job, "--format=%S")
        return round(datetime.fromisoformat(text).timestamp())

    def reason(self, job: str) -> str:
        return self.slurm("squeue", "--noheader", "--jobs", job, "--format=%r")

    def wait_state(self, job: str, *states: str) -> None:
        self.until(lambda: self.state(job) in states, f"job {job} is {' or '.join(states)}")

    def slices(self) -> dict[str, SimInstance]:
        """Every slice that exists, by UUID, as the simulated GPUs of all nodes have it."""
        found: dict[str, SimInstance] = {}
        for node in self.lab.nodes:
            found |= simgpu.snapshot(self.lab.sim_state(node)).slices()
        return found

    def profiles(self, uuids: Sequence[str]) -> list[str]:
        """What these slices are. Fails when one does not exist."""
        slices = self.slices()
        return [slices[uuid].profile for uuid in uuids]

    def published(self, node: str) -> dict[str, int]:
        """The node's vgpu counts by type, padding included."""
        return self._counts(node, "Gres")

    def used(self, node: str) -> dict[str, int]:
        """By type; untyped use is under ""."""
        return {kind: count for kind, count in self._counts(node, "GresUsed").items() if count}

    def _counts(self, node: str, field: str) -> dict[str, int]:
        text = self.slurm("scontrol", "--details", "--oneliner", "show", "node", node)
        match = re.search(rf" {field}=(\S*)", text)
        assert match is not None, text
        items = re.findall(r"(?:^|,)vgpu(?::([^:,(]+))??:(\d+)(?=[,(]|$)", match[1])
        return {kind: int(count) for kind, count in items}

    def granted(self, node: str) -> set[str]:
        """The jobs that have slices there, as the agent has it on disk."""
        return {path.stem for path in self._grants(node).glob("*.json")}

    def grant(self, node: str, job: str) -> str:
        return (self._grants(node) / f"{job}.json").read_text()

    def _grants(self, node: str) -> Path:
        return self.lab.state / f"agent-{node}" / "grants"

    def node_state(self, node: str) -> str:
        return self.slurm("sinfo", "--noheader", f"--nodes={node}", "--partition=gpu", "--format=%T")

    def counts_are_right(self) -> bool:
        """Every slice is published, none twice. What Slurm forgot the type of (use after a restart) has no count."""
        for node in self.lab.nodes:
            published, forgotten = self.published(node), self.used(node).get("", 0)
            made = len(simgpu.snapshot(self.lab.sim_state(node)).slices())
            if sum(published.values()) != TOTAL or TOTAL - published.get("pad", 0) != made - forgotten:
                return False
        return True

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        if not processes.wait_until(condition, limit_s=limit_s, every_s=0.1):
            raise AssertionError(f"not within {limit_s:.0f} s: {what}\n{self._picture()}")

    def _picture(self) -> str:
        looks = (["squeue", "-a", "-o", "%i %u %P %T %r %b %N"], ["scontrol", "-d", "-o", "show", "node"])
        return "\n".join(
            subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30, check=False).stdout
            for argv in looks
        )

    # What admins do

    def apply(self, policy: str) -> Ran:
        self.lab.pool_config.write_text(policy)
        return self.vgpu("apply")

    def policy(self, *changes: tuple[str, str]) -> str:
        """pool.yaml as the lab started, with these texts replaced."""
        text = self._first_policy
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return text

    def hook(self, program: str, job: str) -> Ran:
        """Run a prolog or an epilog of this job by hand."""
        env = {"SLURM_JOB_ID": job, "SLURM_CONF": str(self.lab.slurm_conf), "PATH": os.environ["PATH"]}
        done = subprocess.run([program], env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def vgpu(self, *argv: str, user: str = "root") -> Ran:
        """As this user, who may read the program wherever the checkout is: a fresh clone may lie under /root."""
        setpriv, *person = as_person(user, ("vgpu", *argv))
        done = subprocess.run(
            [setpriv, *(READS if user != "root" else ()), *person],
            env=self.env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def settle(self) -> None:
        """Back to how the lab started: no job, the first policy, every slice free."""
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            self.slurm("scancel", f"--state={state}")
        self.until(lambda: not self.slurm("squeue", "--all", "--noheader", "--format=%i"), "every job is gone")
        if self.lab.pool_config.read_text() != self._first_policy:
            ran = self.apply(self._first_policy)
            assert ran.code == 0, ran.err
        self.until(lambda: commands.status(self.lab.name, self.base).lacks == "", "the lab is ready")
        self.until(self.counts_are_right, "every slice is published")
        for home in (self.lab.folder / "home").glob("*"):
            for file in home.iterdir():
                file.unlink()


def seen(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """(node, slices) of each line of SEE in a job's output."""
    return [(node, tuple(uuid for uuid in uuids.split(",") if uuid)) for node, uuids in _SEES.findall(text)]


def name_of_this_run() -> str:
    """Another one for each pytest-xdist worker."""
    return f"e2e-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
