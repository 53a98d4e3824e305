"""What the controller did and why, as it happens: to the log, and to the history on disk.

The loop only notes; a task beside it writes, on a thread. Each decision that was taken is seen once, and so are its
events.

Crash: what was noted and not yet written, some milliseconds' worth, is lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.controller.recuts import Event
from slurm_plugin.controller.state import Decision, GpuPlan
from slurm_plugin.errors import RequestError
from slurm_plugin.guarantees import Margin
from slurm_plugin.history import LIMIT, TEXT_MAX, Entry, History, What
from slurm_plugin.mig.geometry import Layout
from slurm_plugin.model import Step

log = logging.getLogger(__name__)

NOTED_MAX = 10_000  # entries not yet on disk
SENT_MAX = 10_000  # steps without an answer
RETRY_S = 5.0  # after the disk refused


class Chronicle:
    def __init__(self, file: HistoryFile, clock: Callable[[], float], problems: dict[str, str]) -> None:
        self._file = file
        self._clock = clock
        self._problems = problems
        self._noted: deque[Entry] = deque()
        self._some = asyncio.Event()
        self._lost = 0
        self._sent: dict[int, tuple[Entry, bool]] = {}  # step -> what it does; is it for the queue?
        self._margins: dict[str, tuple[int, bool]] = {}  # guarantee -> the least it had to spare, and does it lack now
        self.note(Entry(at=clock(), what=What.STARTED))

    # -- what happens

    def note(self, entry: Entry) -> None:
        entry = replace(entry, why=entry.why[:TEXT_MAX], error=entry.error[:TEXT_MAX])
        log.info(f"{'recut' if entry.gpu else 'pool'}.{entry.what}", extra=_facts(entry))
        if len(self._noted) >= NOTED_MAX:
            self._lost += 1
            self._problems["history"] = f"{self._lost} entries of the history are lost: it can't be written so fast"
            log.error("history.lost", extra={"lost": self._lost, "bound": NOTED_MAX})
            return
        self._noted.append(entry)
        self._some.set()

    def see(self, decision: Decision) -> None:
        """A decision that is followed from now on. Call it once with each."""
        where = {plan.gpu: plan.index for plan in decision.plan}
        for event in decision.recuts.events:
            self.note(_entry(event, where.get(event.gpu, -1)))
        self._see_margins(decision.margins)

    def _see_margins(self, margins: Sequence[Margin]) -> None:
        for one in margins:
            spare, lacks = one.have - one.at_least, one.have < one.at_least
            least, lacked = self._margins.get(one.guarantee, (spare + 1, lacks))
            self._margins[one.guarantee] = (min(least, spare), lacks)
            if spare < least or lacks != lacked:
                why = f"lacks {-spare}" if lacks else f"{spare} to spare"
                self.note(
                    Entry(
                        at=self._clock(),
                        what=What.GUARANTEE,
                        why=why,
                        guarantee=one.guarantee,
                        have=one.have,
                        at_least=one.at_least,
                    )
                )
        if margins:
            names = {one.guarantee for one in margins}
            self._margins = {name: known for name, known in self._margins.items() if name in names}

    def sent(self, number: int, step: Step, plan: GpuPlan, *, for_queue: bool) -> None:
        """A step has gone to its agent."""
        if len(self._sent) >= SENT_MAX:
            del self._sent[next(iter(self._sent))]
        entry = Entry(
            at=self._clock(),
            what=What.CHANGED,
            node=plan.node,
            gpu=plan.gpu,
            index=plan.index,
            destroyed=_shapes(step.destroy),
            created=_shapes(step.create),
            why=plan.why,
        )
        self._sent[number] = (entry, for_queue)

    def ended(self, number: int, error: str) -> None:
        """A step's answer. That one for the queue has reached its end, the decision that finds it so tells."""
        entry, for_queue = self._sent.pop(number, (None, False))
        if entry is None or (for_queue and not error):
            return
        now = self._clock()
        what = What.FAILED if error else What.CHANGED
        self.note(replace(entry, at=now, what=what, took_s=round(max(0.0, now - entry.at), 3), error=error))

    # -- the disk

    async def run(self) -> None:
        """Write what was noted, for ever; the rest when this ends."""
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                entries = self._take()
                try:
                    await asyncio.to_thread(self._file.append, entries)
                except OSError as error:
                    self._noted.extendleft(reversed(entries))
                    self._some.set()
                    self._problems["history"] = f"the history can't be written: {error.strerror or error}"
                    log.warning("history.not_written", extra={"error": str(error), "waiting": len(self._noted)})
                    await asyncio.sleep(RETRY_S)
                else:
                    self._problems.pop("history", None)
        finally:
            self._write_rest()

    def _take(self) -> list[Entry]:
        entries = list(self._noted)
        self._noted.clear()
        return entries

    def _write_rest(self) -> None:
        try:
            self._file.append(self._take())
        except OSError as error:
            log.warning("history.not_written", extra={"error": str(error)})

    async def read(self, node: str, since: float, limit: int) -> History:
        """Raises RequestError when the file can't be read."""
        try:
            entries, more = await asyncio.to_thread(self._file.read, node, since, limit or LIMIT)
        except OSError as error:
            raise RequestError(f"the history can't be read: {error.strerror}") from None
        return History(entries=tuple(entries), more=more)


def _entry(event: Event, index: int) -> Entry:
    return Entry(
        at=event.at,
        what=event.what,
        node=event.node,
        gpu=event.gpu,
        index=index,
        destroyed=_shapes(event.destroy),
        created=_shapes(event.create),
        why=event.why,
        took_s=round(event.took_s, 3),
    )


def _shapes(layout: Iterable[tuple[str, int]] | Layout) -> tuple[str, ...]:
    return tuple(f"{profile}@{start}" for profile, start in layout)


def _facts(entry: Entry) -> dict[str, object]:
    names = ("node", "gpu", "why", "took_s", "error", "guarantee", "have", "at_least")
    facts = {name: getattr(entry, name) for name in names if getattr(entry, name)}
    facts |= {"gone": entry.destroyed, "made": entry.created} if entry.gpu else {}  # `created` is logging's own
    return facts if entry.index < 0 else facts | {"index": entry.index}
