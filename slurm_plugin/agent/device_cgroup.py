"""The second lock on a slice's devices: a device program on the cgroup that a job's tasks run in.

File modes tell users apart; this tells jobs apart, those of one user too. The program refuses the `nvidia-cap` devices
of the pool's GPUs, but for the job's own, and only ever takes away: the kernel asks all the programs of a cgroup, and
each has a veto. It is attached before a task's first instruction (at its task prolog), and goes when its cgroup goes.
Nothing about it is remembered: what is attached carries its own name, so an agent that starts anew finds it.

Where Slurm runs on cgroup v2 it is the job's own cgroup, or, where Slurm has a program on that one, the step's: Slurm's
own are on a job, on its steps' folders `user` and on their tasks, and share with nobody. Elsewhere it is one of ours
for each run, inside the cgroup that the step's slurmstepd is in, and the task is moved there. A kernel without cgroup2
or bpf leaves one lock: the file modes.

Source: bpf(2); Linux include/uapi/linux/bpf.h, struct bpf_cgroup_dev_ctx; kernel/bpf/cgroup.c, compute_effective_progs;
Slurm 22.05 to 26.05, plugins/cgroup/v2, cgroup_p_constrain_apply.
"""

import contextlib
import errno
import glob
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from slurm_plugin.agent import bpf, outlived
from slurm_plugin.agent.outlived import Outlived
from slurm_plugin.agent.peer import MAX_DEPTH, StepProcess, read
from slurm_plugin.model import RunKey

log = logging.getLogger(__name__)

_DEPTH = 4  # folders between the mount and ours, looked for after a restart
_RUN = re.compile(r"(\d+)-(\d+)-(\d+)")
_OWNERS = "nvidia-caps"  # the driver's name for its capability devices


class DeviceCgroup:
    """Blocking calls, made from one thread. A failure is logged, and told by the answer.

    `pools` tells the minors of all capabilities of the pool's GPUs, those of instances to come included; empty while
    the driver has not told which GPUs there are: what is attached then stays.
    """

    def __init__(
        self,
        pools: Callable[[], frozenset[int]],
        *,
        proc_root: Path,
        folder: str = "vgpu",
        proc: Path = Path("/proc"),
    ) -> None:
        self._pools = pools
        self._devices = proc_root / "devices"
        self._folder = folder
        self._proc = proc
        self._mount: Path | None = None
        self._came: set[RunKey] = set()  # that somebody was confined for
        self._homes: set[Path] = set()  # folders of ours that hold runs' cgroups
        self._scopes: set[Path] = set()  # Slurm's, that hold its jobs' cgroups
        self.why_not = "not looked at yet"  # why this node has no second lock; empty when it has

    def start(self) -> None:
        """Find out whether this kernel can do it now, and what an earlier agent left."""
        before = self.why_not
        self._mount = _cgroup2(self._proc)
        if self._mount is None:
            self.why_not = "no cgroup2 is mounted"
        elif self._major() is None:
            self.why_not = f"{self._devices} names no {_OWNERS}"
        else:
            self.why_not = bpf.why_not()
            self._homes = set(_below(self._mount, glob.escape(self._folder)))
            self._scopes = {job.parent for job in _below(self._mount, "job_*")}
            for folder in (folder for home in self._homes for folder in _folders(home)):
                outlived.go_on(folder)
        if self.why_not and self.why_not != before:
            log.warning("cgroup.unusable", extra={"why": self.why_not})

    def confine(self, run: RunKey, minors: Iterable[int], pid: int, step: StepProcess) -> bool:
        """Let the task that `pid` is the prolog of open these of the pool's capabilities alone, and all that it starts.

        The task is an ancestor of its prolog, below the step's slurmstepd. The prolog itself is not moved, as each move
        costs the kernel milliseconds. A task that asks for itself is.
        Crash: the task is confined, or its task prolog fails and it never runs.
        """
        major = self._major()
        if self._mount is None or self.why_not or major is None:
            return False
        denied = self._pools().difference(minors)
        try:
            ours = self._path_of(step.pid)
            if (slurms := _slurms(ours, run.job_id)) is not None:
                self._hold_job(self._mount / slurms, self._mount / ours, major, denied)
                self._scopes.add((self._mount / slurms).parent)
                self._came.add(run)
                return bool(denied)
            folder = self._home(ours) / _name(run)
            folder.mkdir(mode=0o755, exist_ok=True)
            self._hold(folder, major, denied)
            chain = self._between(pid, step)
            for one in chain[1:] or chain:
                if f"/{self._path_of(one)}/" != f"/{folder.relative_to(self._mount)}/":
                    (folder / "cgroup.procs").write_text(str(one))
        except OSError as error:
            log.warning("cgroup.failed", extra={"job_id": run.job_id, "error": str(error)})
            return False
        return bool(denied)

    def confines(self, pid: int, run: RunKey) -> bool:
        """Is this process in its run's cgroup, with a program of ours on it?"""
        if self._mount is None or self.why_not:
            return False
        try:
            path = self._path_of(pid)
        except OSError:
            return False
        its = _slurms(path, run.job_id) is not None or f"/{path}/".endswith(f"/{self._folder}/{_name(run)}/")
        return its and bool(_programs(self._mount / path, above=True))

    def sweep(self, alive: frozenset[RunKey], jobs: Collection[int] = ()) -> None:
        """Remove the cgroups of runs that are over. Where somebody of such a run lives on, he may open nothing more.

        Of `jobs` it isn't known which run they have. A driver may have been loaded since this was last called.
        """
        if self.why_not:
            self.start()
        major = self._major()
        self._came &= alive
        for home in tuple(self._homes):
            for folder in _folders(home):
                match = _RUN.fullmatch(folder.name)
                if match is None or int(match[1]) in jobs or _run(match) in alive:
                    continue
                try:
                    folder.rmdir()
                except OSError as error:
                    if error.errno == errno.EBUSY and major is not None:
                        self._shut(folder, major)

    def hold_still(self, runs: Iterable[RunKey], jobs: Collection[int]) -> tuple[Outlived, ...]:
        """What outlives these runs does nothing from here on, as far as it can be made to. Until `go_on`.

        `jobs` have a run now: Slurm's cgroup of such a job is that one's. Bound: outlived.STILL_S.
        """
        return outlived.hold([(run, folder) for run in runs for folder in self._folders_of(run, jobs)])

    def go_on(self, held: Iterable[Outlived]) -> None:
        for one in held:
            outlived.go_on(one.cgroup)

    def came(self, run: RunKey) -> bool:
        """Was anybody confined for a run that goes on? After a restart its own cgroup tells, not Slurm's."""
        return run in self._came or any((home / _name(run)).is_dir() for home in self._homes)

    def present(self, run: RunKey) -> tuple[Outlived, ...]:
        """What is there of a run that goes on, in a cgroup of its own."""
        folders = [folder for folder in self._folders_of(run, {run.job_id}) if outlived.is_populated(folder)]
        return tuple(Outlived(run=run, cgroup=folder, still=False) for folder in folders)

    def _folders_of(self, run: RunKey, jobs: Collection[int]) -> Iterator[Path]:
        """Cgroups with processes of this run, and none of Slurm's own."""
        yield from (home / _name(run) for home in self._homes)
        for scope in self._scopes if run.job_id not in jobs else ():
            yield from _matches(scope, f"job_{run.job_id}/step_*/user")

    def _hold_job(self, job: Path, stepd: Path, major: int, denied: Collection[int]) -> None:
        """Slurm's cgroup of a job, or those of this step and of who comes in by pam_slurm_adopt. Raises OSError."""
        try:
            self._hold(job, major, denied)
        except PermissionError:
            steps = {job / part for part in stepd.relative_to(job).parts[:1]}
            if not steps:
                raise
            for step in steps.union(_matches(job, "step_extern")):
                self._hold(step, major, denied)

    def _hold(self, folder: Path, major: int, denied: Collection[int]) -> None:
        """Make a program that refuses these the one of ours on this cgroup. Raises OSError.

        The new one is attached before the old goes: in between both must agree, so nothing opens up. Nor does it when
        ours is the first one here: what held from further up and would no more is put here too.
        """
        if not denied:
            return
        wanted = bpf.name_of(major, denied)
        with _opened(folder) as cgroup:
            there = bpf.attached(cgroup)
            if wanted not in there:
                if bpf.is_bare(cgroup):
                    self._inherit(folder, cgroup)
                bpf.attach(cgroup, bpf.denial(major, denied), wanted)
            for name in there.keys() - {wanted}:
                bpf.detach(cgroup, there[name])

    def _inherit(self, folder: Path, cgroup: int) -> None:
        for above in folder.parents:
            with _opened(above) as parent:
                if bpf.inherit(cgroup, parent) or above == self._mount:
                    return

    def _shut(self, folder: Path, major: int) -> None:
        try:
            self._hold(folder, major, self._pools())
        except OSError as error:
            log.warning("cgroup.not_shut", extra={"cgroup": str(folder), "error": str(error)})

    def _major(self) -> int | None:
        return major_of(self._devices)

    def _path_of(self, pid: int) -> str:
        """This process's cgroup, below the mount."""
        lines = read(f"{self._proc}/{pid}/cgroup").decode().splitlines()
        path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
        if path is None or ".." in path.split("/"):
            raise FileNotFoundError(f"process {pid} has no cgroup2 in sight")
        return path

    def _home(self, path: str) -> Path:
        """Our folder in this cgroup, and never one in another of ours."""
        parts = path.split("/") if path else []
        outside = parts[: parts.index(self._folder)] if self._folder in parts else parts
        assert self._mount is not None
        home = self._mount.joinpath(*outside, self._folder)
        home.mkdir(mode=0o755, exist_ok=True)
        self._homes.add(home)
        return home

    def _between(self, pid: int, step: StepProcess) -> list[int]:
        """`pid` and its ancestors, without the step's slurmstepd. Raises OSError when they don't lead there."""
        found: list[int] = []
        while pid != step.pid:
            if pid <= 1 or len(found) >= MAX_DEPTH:
                raise ProcessLookupError(f"no way from process {found[0] if found else pid} up to its slurmstepd")
            found.append(pid)
            pid = int(read(f"{self._proc}/{pid}/stat").rpartition(b")")[2].split()[1])
        return found


def remove(folder: str, proc: Path = Path("/proc")) -> None:
    """Take away all that agents with this folder name left, as far as no process is in it."""
    mount = _cgroup2(proc)
    for home in _below(mount, glob.escape(folder)) if mount else ():
        for one in (*_folders(home), home):
            with contextlib.suppress(OSError):
                one.rmdir()


def _below(mount: Path, name: str) -> list[Path]:
    """Cgroups of this name that are no deeper than ours and Slurm's."""
    return [one for depth in range(_DEPTH) for one in _matches(mount, "*/" * depth + name)]


def _matches(folder: Path, pattern: str) -> list[Path]:
    """Path.glob fails on a folder that goes meanwhile."""
    return [Path(one) for one in glob.glob(f"{glob.escape(str(folder))}/{pattern}")]  # noqa: PTH207


def major_of(devices: Path) -> int | None:
    """The major number of capability devices, from the kernel's list; it is given out anew with each driver load."""
    try:
        lines = [line.split() for line in devices.read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[0]) for words in lines if words[1:] == [_OWNERS]), None)


def _programs(folder: Path, *, above: bool = False) -> list[str]:
    try:
        with _opened(folder) as cgroup:
            return list(bpf.attached(cgroup, above=above))
    except OSError:
        return []


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _folders(home: Path) -> tuple[Path, ...]:
    try:
        return tuple(Path(entry.path) for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return ()


def _slurms(path: str, job_id: int) -> str | None:
    """The job's own cgroup where Slurm made one: it holds all of the job's steps."""
    before, found, _ = f"/{path}/".partition(f"/job_{job_id}/")
    return f"{before}/job_{job_id}".lstrip("/") if found else None


def _run(match: re.Match[str]) -> RunKey:
    return RunKey(job_id=int(match[1]), started_at=int(match[2]), uid=int(match[3]))


def _name(run: RunKey) -> str:
    return f"{run.job_id}-{run.started_at}-{run.uid}"


def _cgroup2(proc: Path) -> Path | None:
    """Where cgroup2 is mounted whole."""
    with contextlib.suppress(OSError):
        for line in (proc / "self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            root, where = fields.split()[3:5]
            if kind.startswith("cgroup2 ") and root == "/":
                return Path(where)
    return None
