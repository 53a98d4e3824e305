"""PURE: who has what on this node.

The book holds the GPUs as last read, the controller's terms, and one entry a run: a grant with slices, or the note
that a run asked for none. Its one law: no slice is in two grants, and none that is promised to a run still waiting for
more is given to another. Whatever would break it raises, and leaves the book unchanged.
"""

from collections import OrderedDict
from dataclasses import replace

from slurm_plugin.agent.choose import Floor, cut, in_pool, pick, standings
from slurm_plugin.agent.terms import Terms, Want
from slurm_plugin.model import Gpu, Grant, Instance, RunKey, Step

MAX_WITHOUT = 4096  # runs without slices that are remembered; a forgotten one is asked of Slurm again


class Book:
    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.terms = Terms()
        self.grants: dict[int, Grant] = {}  # by job id: one run a job at a time
        self.without: OrderedDict[int, RunKey] = OrderedDict()
        self.doubted: set[int] = set()  # jobs whose entry may be an older run's: Slurm is asked before it is used
        self.unseen: set[str] = set()  # freed and new slices not yet looked at: soon idle, or haunted
        self.haunted: dict[str, str] = {}  # slices that somebody without a grant has not left: who
        self.lost: frozenset[RunKey] = frozenset()  # runs from under which a slice has gone, whatever has its UUID now
        self.unguarded: set[int] = set()  # jobs with a slice whose devices could not be made their user's alone
        self.confines = False  # this node's tasks start in a device cgroup that lets them open their job's slices alone
        self.unconfined: set[int] = set()  # jobs with a task that does not
        self._promised: dict[int, tuple[str, ...]] = {}  # slices kept for a run while one more is cut for it
        self._steps: dict[str, Step] = {}  # by GPU: changes under way

    def busy(self, *, but: int = -1) -> set[str]:
        """Slices in a grant, promised to a run other than job `but`, or not known to be left by everybody."""
        return self.held().union(
            self.unseen, self.haunted, *(slices for job_id, slices in self._promised.items() if job_id != but)
        )

    def held(self) -> set[str]:
        """Slices in a grant."""
        return {uuid for grant in self.grants.values() for uuid in grant.slices}

    def pick(self, job_id: int, want: Want) -> tuple[str, ...]:
        return pick(self._floor(job_id), want)

    def soon(self, job_id: int, want: Want) -> bool:
        """Will there be enough when the freed slices have been looked at?"""
        return len(pick(self._looked_at(job_id), want)) >= want.count

    def better_soon(self, job_id: int, want: Want) -> bool:
        """There is enough now; will there be slices that suit it better when the freed ones have been looked at?"""
        now = standings(self._floor(job_id), want) if self.unseen else ()
        return len(now) >= want.count and standings(self._looked_at(job_id), want) < now

    def cut(self, job_id: int, want: Want, refused: set[tuple[str, str]]) -> Step | None:
        return cut(self._floor(job_id), want, refused)

    def promise(self, job_id: int, slices: tuple[str, ...]) -> None:
        self._promised[job_id] = slices

    def unpromise(self, job_id: int) -> None:
        self._promised.pop(job_id, None)

    def add(self, grant: Grant) -> None:
        """Raises ValueError when the job has another grant, or a slice is somebody's."""
        if grant.run.job_id in self.grants:
            raise ValueError(f"job {grant.run.job_id} has a grant")
        if taken := self.busy(but=grant.run.job_id).intersection(grant.slices):
            raise ValueError(f"{sorted(taken)} are somebody's")
        if len(set(grant.slices)) != len(grant.slices):
            raise ValueError("a slice twice in one grant")
        self.without.pop(grant.run.job_id, None)
        self.unpromise(grant.run.job_id)
        self.grants[grant.run.job_id] = grant

    def knows(self, job_id: int) -> bool:
        """Is there an entry for this job's present run?"""
        return (job_id in self.grants or job_id in self.without) and job_id not in self.doubted

    def run_of(self, job_id: int) -> RunKey | None:
        """The run that its entry is of."""
        grant = self.grants.get(job_id)
        return grant.run if grant is not None else self.without.get(job_id)

    def isolation(self, job_id: int) -> str:
        """What keeps others from this job's slices: `mig` (the hardware), then the locks on their devices."""
        modes = "" if job_id in self.unguarded else "+modes"
        return f"mig{modes}{'+cgroup' if self.confines and job_id not in self.unconfined else ''}"

    def drop(self, grant: Grant) -> None:
        """Nothing happens when its job has another one by now."""
        job_id = grant.run.job_id
        if self.grants.get(job_id) is grant:
            del self.grants[job_id]
            self.unguarded.discard(job_id)
            self.unconfined.discard(job_id)
            self.doubted.discard(job_id)

    def note_without(self, run: RunKey) -> None:
        self.without[run.job_id] = run
        self.without.move_to_end(run.job_id)
        while len(self.without) > MAX_WITHOUT:
            self.without.popitem(last=False)

    def gpu(self, uuid: str) -> Gpu | None:
        return next((one for one in self.gpus if one.uuid == uuid), None)

    def pools(self) -> frozenset[int]:
        """The pool's GPUs, as far as they were seen: the N of /dev/nvidiaN."""
        return frozenset(gpu.minor for gpu in self.gpus if in_pool(gpu, self.terms))

    def instance(self, uuid: str) -> tuple[Gpu, Instance] | None:
        return next(((gpu, one) for gpu in self.gpus for one in gpu.instances if one.uuid == uuid), None)

    def slices(self, grant: Grant) -> tuple[tuple[Gpu, Instance], ...]:
        """Where a grant's slices are; those that have vanished are left out."""
        found = (self.instance(uuid) for uuid in grant.slices)
        return tuple(one for one in found if one is not None)

    def vanished(self) -> tuple[Grant, ...]:
        """Grants with a slice that is no more, as far as every GPU could be read."""
        if not self.gpus or any(not gpu.uuid for gpu in self.gpus):
            return ()
        there = {one.uuid for gpu in self.gpus for one in gpu.instances}
        return tuple(grant for grant in self.grants.values() if not there.issuperset(grant.slices))

    def refusal(self, step: Step) -> str:
        """Why a step can't be made now; empty when it can."""
        gpu = self.gpu(step.gpu)
        if gpu is None:
            return f"no GPU {step.gpu} on this node"
        if step.gpu in self._steps:
            return "another step is changing this GPU"
        there = {(one.profile, one.start): one for one in gpu.instances}
        busy = self.busy() - self.unseen  # if somebody is still there, the driver refuses
        for profile, start in step.destroy:
            instance = there.get((profile, start))
            if instance is None:
                return f"no {profile} at {start}"
            if instance.foreign:
                return f"{profile} at {start} is not the pool's"
            if instance.uuid in busy:
                return f"{profile} at {start} is in use"
        return ""

    def begin(self, step: Step) -> None:
        """From here to `end`, what the step destroys is not given out. Raises ValueError when `refusal` has a word."""
        if why := self.refusal(step):
            raise ValueError(why)
        self._steps[step.gpu] = step

    def end(self, step: Step) -> None:
        self._steps.pop(step.gpu, None)

    def see(self, gpus: tuple[Gpu, ...]) -> bool:
        """Take in a whole inventory. True when it differs from the last one."""
        changed = gpus != self.gpus
        self.gpus = gpus
        return changed

    def _looked_at(self, job_id: int) -> Floor:
        """As it will be when nobody is found in the slices that are unseen."""
        floor = self._floor(job_id)
        return replace(floor, busy=set(floor.busy) - self.unseen)

    def _floor(self, job_id: int) -> Floor:
        closing = {(step.gpu, profile, start) for step in self._steps.values() for profile, start in step.destroy}
        return Floor(
            gpus=self.gpus,
            terms=self.terms,
            busy=self.busy(but=job_id),
            held=self.held(),
            ends={uuid: grant.ends_at for grant in self.grants.values() if grant.ends_at for uuid in grant.slices},
            closing=closing,
            cutting=self._steps.keys(),
        )
