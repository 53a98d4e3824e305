"""The pool's story in real commands and their real output: `python -m slurm_plugin.lab.demo`, or `make demo`.

Every step checks that it did what it says; the first that did not ends the demo with exit status 1. What it starts, it
takes down.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_plugin.errors import LabError, VgpuError
from slurm_plugin.lab import commands, processes, simgpu
from slurm_plugin.lab.people import as_person, ensure_people, home_of, remove_people
from slurm_plugin.lab.site import Lab

NAME = "demo"
STEP_LIMIT_S = 60.0
COMMAND_LIMIT_S = 60.0
_UUID = re.compile(r"MIG-[0-9a-f-]{36}")
JOB = """\
#!/bin/sh
echo "on $SLURMD_NODENAME with CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
exec sleep 600
"""


class Story:
    """Runs commands as somebody, shows them as typed and as answered."""

    def __init__(self, host: str = "") -> None:
        self._at = f"@{host}" if host else ""  # where several sites are told of
        self._env = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}
        self._cwd = Path("/")
        self._homes = Path("/")

    def enter(self, lab: Lab, **more: str) -> None:
        """From now on as after `eval "$(vgpu lab env)"`, each person in a folder of his own with job.sh in it.

        `more`: variables besides.
        """
        self._env |= commands.environment(lab.name, lab.folder.parent) | more
        self._homes = lab.homes
        for person in ("alice", "bob"):
            home_of(person, self._homes)
            self.put("job.sh", JOB, by=person)

    def put(self, name: str, text: str, *, by: str) -> None:
        """A file in this person's folder."""
        path = self._homes / by / name
        path.write_text(text)
        shutil.chown(path, by, by)

    def read(self, name: str, *, by: str) -> str:
        """What such a file has in it; nothing when there is none."""
        path = self._homes / by / name
        return path.read_text() if path.exists() else ""

    def tell(self, text: str) -> None:
        print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)

    def type(self, line: str, *, by: str = "root", fails: bool = False) -> str:
        """What it printed, stdout and stderr. Raises LabError when it failed, or did not where it should."""
        print(f"{by}{self._at}{'#' if by == 'root' else '$'} {line}", flush=True)
        argv = ("sh", "-c", line)
        done = subprocess.run(
            argv if by == "root" else as_person(by, argv),
            env=self._env,
            cwd=self._cwd if by == "root" else self._homes / by,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        print(done.stdout, end="", flush=True)
        if (done.returncode != 0) != fails:
            raise LabError(f"this should have {'failed' if fails else 'worked'}: {line}")
        return done.stdout

    def quiet(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
        return done.stdout.strip()

    def submit(self, options: str, *, by: str) -> str:
        """The job's id."""
        said = self.type(f"sbatch {options} job.sh", by=by)
        match = re.search(r"Submitted batch job (\d+)", said)
        check(match is not None, "a job was submitted")
        return match[1] if match else ""

    def state(self, job: str) -> str:
        return self.quiet("squeue", "--noheader", "--states=all", "--jobs", job, "--format=%T")

    def slices_of(self, job: str, *, by: str) -> tuple[str, ...]:
        """What the job says it sees, once it says so."""
        out = f"slurm-{job}.out"
        until(lambda: "CUDA_VISIBLE_DEVICES=" in self.read(out, by=by), f"job {job} runs")
        return tuple(_UUID.findall(self.type(f"cat {out}", by=by)))


def check(holds: bool, what: str) -> None:
    if not holds:
        raise LabError(f"this should hold and does not: {what}")
    print(f"   ok: {what}", flush=True)


def until(condition: Callable[[], bool], what: str) -> None:
    if not processes.wait_until(condition, limit_s=STEP_LIMIT_S, every_s=0.2):
        raise LabError(f"waited {STEP_LIMIT_S:.0f} s in vain: {what}")


def profiles(lab: Lab, uuids: tuple[str, ...]) -> list[str]:
    """What the simulated GPUs say these slices are; "none" for one that does not exist."""
    found: dict[str, simgpu.SimInstance] = {}
    for node in lab.nodes:
        found |= simgpu.snapshot(lab.sim_state(node)).slices()
    return [found[uuid].profile if uuid in found else "none" for uuid in uuids]


def come_up(story: Story) -> Lab:
    story.tell("A Slurm site with two nodes and eight simulated H100 on this machine")
    story.type(f"vgpu lab up --name {NAME} --nodes 2 --gpus 4")
    lab = commands.load(NAME)
    story.enter(lab)
    story.type("sinfo")
    story.type("vgpu status")
    check(not commands.status(NAME).lacks, "the lab is ready")
    return lab


def two_people(story: Story, lab: Lab) -> tuple[str, tuple[str, ...]]:
    story.tell("alice wants 20 GB, bob two small slices: each gets the smallest that fit, and sees only those")
    first, second = story.submit("--gres=vgpu:20gb", by="alice"), story.submit("--gres=vgpu:1g.10gb:2", by="bob")
    hers, his = story.slices_of(first, by="alice"), story.slices_of(second, by="bob")
    story.type("squeue --format='%i %u %T %N %b'")
    check(profiles(lab, hers) == ["2g.20gb"], "alice has one slice of 20 GB")
    check(profiles(lab, his) == ["1g.10gb", "1g.10gb"], "bob has two slices of 10 GB")
    check(not set(hers) & set(his), "they share none")
    story.type(f"vgpu show job {first}")
    story.tell("Two nodes, two tasks on each: a slice for every task")
    task = "echo $SLURMD_NODENAME task $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    said = story.type(f"srun -N2 --ntasks-per-node=2 --gres=vgpu:10gb:2 sh -c '{task}'", by="bob")
    check(len(set(_UUID.findall(said))) == 4, "four tasks have four different slices")
    return first, hers


def refusal(story: Story) -> None:
    story.tell("A wrong request is refused at once, with the nearest that works")
    said = story.type("sbatch --gres=vgpu:2g.10gb job.sh", by="bob", fails=True)
    check("did you mean 2g.20gb?" in said, "bob is told what to write instead")


def restart(story: Story, running: str) -> None:
    story.tell("slurmctld restarts under running jobs")
    story.type(f"vgpu lab stop slurmctld --name {NAME} && vgpu lab start slurmctld --name {NAME}")
    until(lambda: not commands.status(NAME).lacks, "the lab is ready again")
    story.type("sinfo")
    check(story.state(running) == "RUNNING", "alice's job runs on")
    check("drain" not in story.quiet("sinfo", "--noheader", "--format=%T"), "no node was drained")
    again = story.submit("--gres=vgpu:1/2", by="alice")
    check(len(story.slices_of(again, by="alice")) == 1, "the next job gets its slice")
    story.type(f"scancel {again}", by="alice")


def change_of_layout(story: Story, lab: Lab, running: str, held: tuple[str, ...]) -> None:
    story.tell("bob wants a whole GPU. No slice is that big: the job waits, and is not held")
    waiting = story.submit("--gres=vgpu:7g.80gb", by="bob")
    story.type("squeue --format='%i %u %T %r %b'")
    check(story.state(waiting) == "PENDING", "bob's job waits")
    story.tell("The admin changes the layout: one line of pool.yaml, no drain, no restart")
    story.type(f"sed -i 's/layout: .*/layout: {{7g.80gb: 1}}/' {lab.pool_config} && grep layout {lab.pool_config}")
    story.type("vgpu plan")
    story.type("vgpu apply")
    check(profiles(lab, story.slices_of(waiting, by="bob")) == ["7g.80gb"], "bob's job has a whole GPU")
    check(story.state(running) == "RUNNING", "alice's job never stopped")
    check(profiles(lab, held) == ["2g.20gb"], "alice still has the slice she had")
    story.type("vgpu status")


def go_down(story: Story, lab: Lab) -> None:
    story.tell("All of it goes, with its jobs")
    story.type(f"vgpu lab down --name {NAME}")
    check(not lab.folder.exists() and not processes.all_of(lab.folder), "nothing is left: no process, no file")


def one_site() -> None:
    story = Story()
    lab = come_up(story)
    running, held = two_people(story, lab)
    refusal(story)
    restart(story, running)
    change_of_layout(story, lab, running, held)
    go_down(story, lab)


def show(story: Callable[[], None], *labs: str) -> int:
    """The exit status. No lab of these names is there before or after it, nor a person who was not."""
    began = time.monotonic()
    made: tuple[str, ...] = ()
    try:
        for name in labs:
            commands.down(name)  # one that was cut short
        made = ensure_people()
        story()
    except (VgpuError, subprocess.SubprocessError, OSError) as error:
        hint = getattr(error, "hint", "")
        print(f"error: {error}", *([f"hint: {hint}"] if hint else []), sep="\n", file=sys.stderr)
        return 1
    finally:
        for name in labs:
            commands.down(name)
        remove_people(made)
    print(f"\nAll of it worked, in {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(show(one_site, NAME))
