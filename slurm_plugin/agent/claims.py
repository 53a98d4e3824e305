"""Slices that somebody may have though no grant on file says so: withheld until Slurm says that he is not here.

A grant's file that makes no sense still names its job, and the devices of its slices are still its user's. So whatever
an agent finds at its start that is a user's, or was last given to such a job, is claimed. The claim ends when nobody it
may be of runs on this node; or with a new grant, where it is certain what that job has.
"""

import logging
from collections.abc import Iterable

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.model import Gpu, Instance, RunKey

log = logging.getLogger(__name__)

Place = tuple[str, int, int]  # GPU, and the numbers of its GPU instance and compute instance


class Claims:
    def __init__(self, book: Book, devices: Devices, visitors: Visitors) -> None:
        self.garbled: set[int] = set()  # jobs that may be running and whose grant can't be read
        self._book = book
        self._devices = devices
        self._visitors = visitors
        self._judged: set[Place] = set()
        self._uids: dict[str, int] = {}  # by claimed slice: whose its devices are

    def __contains__(self, slice_: str) -> bool:
        return slice_ in self._uids

    @property
    def pending(self) -> bool:
        return bool(self.garbled or self._uids)

    def judged(self, place: Place) -> bool:
        return place in self._judged

    def judge(self, there: dict[Place, tuple[Gpu, Instance]]) -> None:
        """What is here for the first time, and in no grant: is it somebody's all the same? On the disk thread."""
        held = {slice_ for grant in tuple(self._book.grants.values()) for slice_ in grant.slices}
        self._judged &= there.keys()
        for place in there.keys() - self._judged:
            one = there[place][1]
            try:
                uid = self._devices.owner(one)
            except OSError as error:
                log.warning("claim.unknown", extra={"slice": one.uuid, "error": str(error)})
                continue  # unseen until this can be told
            jobs = {run.job_id for run in self._visitors.of(one.caps)} & {*self.garbled, *([0] if self.garbled else [])}
            if one.uuid not in held and (uid or jobs):
                log.warning("slice.claimed", extra={"slice": one.uuid, "uid": uid, "jobs": sorted(jobs)})
                self._uids[one.uuid] = uid
                self._book.haunted[one.uuid] = self._who(uid, jobs)
            self._judged.add(place)

    def had_by(self, run: RunKey) -> tuple[str, ...]:
        """Claimed slices that were this run's, in their places' order."""
        there = [(gpu.index, one.start, one) for gpu in self._book.gpus for one in gpu.instances if one.uuid in self]
        return tuple(one.uuid for *_, one in sorted(there, key=lambda at: at[:2]) if run in self._visitors.of(one.caps))

    def end(self, slices: Iterable[str]) -> None:
        """They are unseen from here on."""
        for slice_ in slices:
            del self._uids[slice_]
            self._book.haunted.pop(slice_, None)
            self._book.unseen.add(slice_)

    def release(self, runs: Iterable[RunKey]) -> bool:
        """End the claims that none of these runs can have. False: there are none."""
        runs = tuple(runs)
        any_garbled = any(run.job_id in self.garbled for run in runs)
        uids = {run.uid for run in runs}
        over = [one for one, uid in tuple(self._uids.items()) if not any_garbled and uid not in uids]
        self.end(over)
        return bool(over)

    def _who(self, uid: int, jobs: set[int]) -> str:
        if named := sorted(jobs - {0}):
            return f"job {named[0]}, whose grant can't be read"
        return f"a job of uid {uid} that no grant tells of" if uid else "a job whose grant can't be read"
