"""PURE: room on a GPU that is kept for a job which no re-cut can serve while others run.

It is kept where what is in the way ends first, by the jobs' time limits. The pool's GPUs are looked at once for all
jobs that may use the same ones: there may be thousands of both.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from operator import itemgetter

from slurm_plugin.controller.look import Here, follows
from slurm_plugin.controller.question import Question
from slurm_plugin.controller.recuts import Room
from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand, Places
from slurm_plugin.mig.geometry import mask
from slurm_plugin.mig.layouts import media_conflict
from slurm_plugin.model import Gpu
from slurm_plugin.planner.problem import Line
from slurm_plugin.planner.why import Unserved

ROOMS_MAX = 4  # jobs that room is kept for at once, in a small pool
ROOMS_SHARE = 16  # ... else one for so many GPUs
FIRST_TRIED = 4  # jobs that such room is looked for until one has it
AHEAD_S = 3600  # nothing lies idle for a job that can't have its room for longer than that, but for the first in line

Ends = Mapping[tuple[int, int], int]  # (job, started at) -> when its time limit ends it, Unix seconds; 0: no limit
_Spot = tuple[tuple[object, ...], str, Room]  # rank, which no other spot has; GPU; the room there, of no job yet


def ends(state: State) -> Ends:
    return {(job.job_id, job.started_at): job.ends_at for job in state.jobs if job.started_at}


def most(gpus: int) -> int:
    """Jobs that room is kept for at once in a pool of so many GPUs."""
    return max(ROOMS_MAX, gpus // ROOMS_SHARE)


def soon_enough(state: State, until: int, *, first: bool) -> bool:
    """The first in line has its room however far off that is: who comes later would else always be before it."""
    return first or until <= state.now + AHEAD_S


def as_now(state: State, when: Ends, node: Here, gpu: Gpu, room: Room) -> Room | None:
    """A room that was kept before; None when it can't come to be any more, or not soon enough."""
    able = may_keep(state, node, gpu) and has_engines(gpu, room.profile, room.bits, 1 + len(room.more))
    found = in_the_way(state, when, node, gpu, room.bits) if able else None
    if found is None or not soon_enough(state, found[1], first=room.first):
        return None
    return replace(room, behind=found[0], until=found[1])


def is_for(state: State, node: Here, room: Room, demand: Demand) -> bool:
    """Has this job still a use for its room? It may ask for something else by now, or for other nodes."""
    serves = room.profile in state.serving.profiles.get(demand.gres_class, ())
    return serves and node.offer is not None and bool(Places([node.offer]).of(demand))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    state: State
    here: Mapping[str, Here]
    question: Question
    changing: Set[str]  # GPUs that are to be re-cut
    kept: Mapping[str, Room]  # by GPU

    @property
    def most(self) -> int:
        return most(sum(len(node.state.view.gpus) for node in self.here.values()))

    def heads(self, unserved: Sequence[Unserved]) -> list[tuple[Demand, Line]]:
        """The first job of each line that may gather what it needs, first in line first."""
        found = []
        for line in (one.want.line for one in unserved if one.want.line is not None and one.want.places):
            jobs = self.question.jobs.get(line, ())
            found += [(demand, line) for demand in islice((d for d in jobs if d.single and d.gathers), 1)]
        return sorted(found, key=lambda one: one[0].rank)

    def first(self, unserved: Sequence[Unserved]) -> dict[str, Room]:
        """That of the first in line for whom there may be any, however long it takes."""
        have = {room.job_id for room in self.kept.values()}
        for demand, line in self.heads(unserved)[:FIRST_TRIED]:
            if demand.job_id in have:
                break
            spots = self._spots(ends(self.state), line.profiles, line.places or frozenset(), first=True)
            if spot := min(spots, default=None, key=itemgetter(0)):
                return {spot[1]: replace(spot[2], job_id=demand.job_id, first=True)}
        return {}

    def rooms(self, unserved: Sequence[Unserved]) -> dict[str, Room]:
        """Further ones for the first jobs that wait in vain, by GPU."""
        found: dict[str, Room] = {}
        have = {room.job_id for room in self.kept.values()}
        when = ends(self.state) if unserved else {}
        best: dict[tuple[tuple[str, ...], frozenset[str]], list[_Spot]] = {}
        most = self.most
        for one in unserved:
            line, places = one.want.line, one.want.places
            if line is None or places is None:
                continue
            waiting = [d.job_id for d in self.question.jobs.get(line, ()) if d.single and d.gathers][: one.count]
            for job_id in (job_id for job_id in waiting if job_id not in have):
                if len(have) >= most:
                    return found
                key = (line.profiles, places)
                if key not in best:
                    best[key] = nsmallest(most, self._spots(when, *key, first=False))
                spot = next((spot for spot in best[key] if spot[1] not in found), None)
                if spot is None:
                    break  # the others find none either
                found[spot[1]] = replace(spot[2], job_id=job_id)
                have.add(job_id)
        return found

    def _spots(self, when: Ends, profiles: Sequence[str], places: Set[str], *, first: bool) -> Iterator[_Spot]:
        """The best one of each GPU that these profiles fit on."""
        for one in self.question.problem.states:
            shapes = self.question.problem.models[one.model]
            able = [
                (nth, Room(node="", profile=name, start=start, size=shapes[name].size, job_id=0, since=self.state.now))
                for nth, name in enumerate(profiles)
                if name in shapes and one.place in places
                for start in shapes[name].starts
                if not mask(start, shapes[name].size) & one.blocked
            ]
            for name, gpu in self.question.sights.of(one) if able else ():
                free = gpu.uuid not in self.changing and gpu.uuid not in self.kept
                if free and may_keep(self.state, self.here[name], gpu):
                    yield from self._best(when, name, gpu, able, first=first)

    def _best(
        self, when: Ends, name: str, gpu: Gpu, able: Sequence[tuple[int, Room]], *, first: bool
    ) -> Iterator[_Spot]:
        ranked = []
        for nth, asked in able:
            found = in_the_way(self.state, when, self.here[name], gpu, asked.bits)
            if found is not None and found[0] and soon_enough(self.state, found[1], first=first):
                behind, until = found
                ranked.append(((not until, until, len(behind), nth, asked.start), asked, behind))
        for (never, until, jobs, nth, start), asked, behind in sorted(ranked, key=lambda one: one[0]):
            if has_engines(gpu, asked.profile, asked.bits, 1):
                rank = (never, until, jobs, nth, name, gpu.index, start)
                yield rank, gpu.uuid, replace(asked, node=name, behind=behind, until=until)
                return


def may_keep(state: State, node: Here, gpu: Gpu) -> bool:
    return node.offer is not None and not gpu.fault and follows(state, node.state)


def has_engines(gpu: Gpu, profile: str, bits: int, count: int) -> bool:
    """Could so many slices be in these memory slices, for all that media engines matter, beside what stays?"""
    shapes = {one.name: one for one in gpu.profiles}
    stay = (one.profile for one in gpu.instances if one.profile in shapes and not mask(one.start, one.size) & bits)
    return not media_conflict(shapes, [*stay, *[profile] * count])


def in_the_way(state: State, when: Ends, node: Here, gpu: Gpu, bits: int) -> tuple[tuple[int, ...], int] | None:
    """The jobs in these memory slices, and when the last one ends, 0 if that is not known; None when others are."""
    jobs: set[int] = set()
    until = 0
    known = True
    for one in gpu.instances:
        if not mask(one.start, one.size) & bits:
            continue
        grant = node.state.view.holder.get(one.uuid)
        if one.foreign or one.ci < 0 or one.uuid in state.recuts.kept or (grant is None and one.uuid in node.reserved):
            return None
        if grant is not None:
            jobs.add(grant.run.job_id)
            end = when.get((grant.run.job_id, grant.run.started_at), 0)
            known, until = known and end > 0, max(until, end)
    return tuple(sorted(jobs)), until if known else 0
