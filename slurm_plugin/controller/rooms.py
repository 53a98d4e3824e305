"""PURE: room on a GPU that is kept for a job which no re-cut can serve while others run.

It is kept where what is in the way ends first, by the jobs' time limits. The pool's GPUs are looked at once for all
jobs that may use the same ones: there may be thousands of both.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import nsmallest

from slurm_plugin.controller.look import Here, follows
from slurm_plugin.controller.question import Question
from slurm_plugin.controller.recuts import Room
from slurm_plugin.controller.state import State
from slurm_plugin.mig.geometry import mask
from slurm_plugin.model import Gpu
from slurm_plugin.planner.why import Unserved

ROOMS_MAX = 4  # jobs that room is kept for at once
AHEAD_S = 3600  # nothing lies idle for a job that can't have its room for longer than that

Ends = Mapping[tuple[int, int], int]  # (job, started at) -> when its time limit ends it, Unix seconds; 0: no limit
_Spot = tuple[tuple[object, ...], str, Room]  # rank, which no other spot has; GPU; the room there, of no job yet


def ends(state: State) -> Ends:
    return {(job.job_id, job.started_at): job.ends_at for job in state.jobs if job.started_at}


def as_now(state: State, when: Ends, node: Here, gpu: Gpu, room: Room) -> Room | None:
    """A room that was kept before; None when it is nobody's any more, or can't come to be."""
    waits = any(job.job_id == room.job_id and not job.on_nodes for job in state.jobs)
    return room_now(state, when, node, gpu, room) if waits and may_keep(state, node, gpu) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    state: State
    here: Mapping[str, Here]
    question: Question
    changing: Set[str]  # GPUs that are to be re-cut
    kept: Mapping[str, Room]  # by GPU

    def rooms(self, unserved: Sequence[Unserved]) -> dict[str, Room]:
        """Further ones for the first jobs that wait in vain, by GPU."""
        found: dict[str, Room] = {}
        have = {room.job_id for room in self.kept.values()}
        when = ends(self.state) if unserved else {}
        best: dict[tuple[tuple[str, ...], frozenset[str]], list[_Spot]] = {}
        for one in unserved:
            line, places = one.want.line, one.want.places
            if line is None or places is None:
                continue
            waiting = [d.job_id for d in self.question.jobs.get(line, ()) if d.single and d.gathers][: one.count]
            for job_id in (job_id for job_id in waiting if job_id not in have):
                if len(have) >= ROOMS_MAX:
                    return found
                key = (line.profiles, places)
                if key not in best:
                    best[key] = nsmallest(ROOMS_MAX, self._spots(when, *key))
                spot = next((spot for spot in best[key] if spot[1] not in found), None)
                if spot is None:
                    break  # the others find none either
                found[spot[1]] = replace(spot[2], job_id=job_id)
                have.add(job_id)
        return found

    def _spots(self, when: Ends, profiles: Sequence[str], places: Set[str]) -> Iterator[_Spot]:
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
                    yield from self._best(when, name, gpu, able)

    def _best(self, when: Ends, name: str, gpu: Gpu, able: Sequence[tuple[int, Room]]) -> Iterator[_Spot]:
        ranked = []
        for nth, asked in able:
            room = room_now(self.state, when, self.here[name], gpu, asked)
            if room is not None and room.behind and room.until <= self.state.now + AHEAD_S:
                ranked.append(((not room.until, room.until, len(room.behind), nth, room.start), room))
        if ranked:
            (never, until, behind, nth, start), room = min(ranked, key=lambda one: one[0])
            rank = (never, until, behind, nth, name, gpu.index, start)
            yield rank, gpu.uuid, replace(room, node=name)


def may_keep(state: State, node: Here, gpu: Gpu) -> bool:
    return node.offer is not None and not gpu.fault and follows(state, node.state)


def room_now(state: State, when: Ends, node: Here, gpu: Gpu, room: Room) -> Room | None:
    """With the jobs that stand in the way; None when something else does."""
    jobs: set[int] = set()
    until = 0
    known = True
    for one in gpu.instances:
        if not mask(one.start, one.size) & room.bits:
            continue
        grant = node.state.view.holder.get(one.uuid)
        if one.foreign or one.ci < 0 or one.uuid in state.recuts.kept or (grant is None and one.uuid in node.reserved):
            return None
        if grant is not None:
            jobs.add(grant.run.job_id)
            end = when.get((grant.run.job_id, grant.run.started_at), 0)
            known, until = known and end > 0, max(until, end)
    return replace(room, behind=tuple(sorted(jobs)), until=until if known else 0)
