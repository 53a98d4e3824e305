"""Letting waiting jobs into the cloud partition, and taking them back: a look at the queue every few seconds.

Nothing that is kept in memory matters: each look reads the queue from Slurm, and what was widened and spent from the
journal. What Slurm refused is remembered so that it isn't asked the same at once, and the last look for who asks.

Crash: a row of what is about to be widened is in the journal before Slurm is told. One without the other is harmless: a
job counts as widened here while it has both the row and the partition.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from federation.engine.effects import Effect
from federation.errors import Unavailable
from federation.overflow import widened
from federation.overflow.changes import Applied, Applies, Change, has_started, is_busy
from federation.overflow.facts import Decision, Facts, Verdict, Widened, Wish
from federation.overflow.looking import Seen, Sources, seen
from federation.overflow.loop import Loop
from federation.overflow.notes import word_in, worded
from federation.overflow.offers import Market
from federation.overflow.pacing import SHARE
from federation.overflow.queued import Queued
from federation.overflow.rules import decide, ours
from federation.overflow.waiting import Running
from federation.store.store import Store
from slurm_plugin.slurm.hostlist import compress

log = logging.getLogger(__name__)

LOOK_S = 10.0  # between looks
REFUSED_S = 600.0  # until a job that Slurm refused to change is tried again
MOST_REFUSED = 10_000  # of which that is known
MOST_KEPT = 20_000  # jobs of the last look that can be asked about
MOST_WORDS = 500  # jobs on which one look puts a word
FORGET_S = 3600.0  # between clearings of what was widened long ago


class State(StrEnum):
    STAYS = "stays"
    ASKED = "asked"  # for the partition itself
    WIDENED = "widened"
    TO_WIDEN = "to_widen"  # decided, and not done
    TO_RECALL = "to_recall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A waiting job, and what was decided. `refusal`: what Slurm said when that was carried out; empty: nothing."""

    queued: Queued
    decision: Decision
    state: State
    refusal: str = ""

    @property
    def tasks(self) -> int:
        """Elements that the decision is about."""
        return self.decision.tasks if self.decision.verdict is Verdict.WIDEN else self.decision.job.tasks

    @property
    def name(self) -> str:
        """How Slurm's commands call them; "": that can't be said."""
        return self.queued.name(self.tasks)


@dataclass(slots=True, kw_only=True)
class Tally:
    waiting: int = 0  # jobs, elements of arrays each
    widened: int = 0
    reserved: float = 0.0  # the price of those


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    at: float  # Unix seconds
    judged: tuple[Judged, ...] = ()  # oldest first, at most MOST_KEPT
    tallies: Mapping[str, "Tally"] = field(default_factory=dict)  # by rule, of all
    running: tuple[Running, ...] = ()
    facts: Facts | None = None  # that it was decided by
    problem: str = ""  # what is wrong, in the queue's reading or in the rules


class Widening:
    def __init__(self, sources: Sources, changes: Applies) -> None:
        self._sources, self._changes = sources, changes
        self._refused: dict[int, tuple[float, str]] = {}  # job id -> until when, and what Slurm said
        self._forget_at = 0.0
        self._poked = asyncio.Event()
        self._looking, self._asking = asyncio.Lock(), asyncio.Lock()
        self._asked: tuple[float, Look] | None = None
        self._seen: Look | None = None
        self.loop = Loop("jobs that wait", self._pass, self._rest)

    @property
    def last(self) -> Look | None:
        """None: there was none yet. Of one that failed only what went wrong."""
        return Look(at=self._sources.clock().wall, problem=self.loop.problem) if self.loop.problem else self._seen

    async def asked(self) -> Look | None:
        """For who asks now: `last`, or without rules, when nothing looks by itself, one that is younger than LOOK_S."""
        if self._sources.config().rules or self.loop.problem:
            return self.last
        async with self._asking:
            now = self._sources.clock()
            if self._asked is None or now.mono - self._asked[0] >= LOOK_S:
                try:
                    look = await self.look(dry=True)
                except Unavailable as error:
                    look = Look(at=now.wall, problem=str(error))
                self._asked = now.mono, look
            return self._asked[1]

    async def _pass(self) -> None:
        self._seen = await self.look()

    async def _rest(self, took_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(LOOK_S, SHARE * took_s)):
                await self._poked.wait()
        self._poked.clear()

    def poke(self) -> None:
        """Look at once: the rules are others."""
        self._poked.set()

    async def look(self, *, dry: bool = False) -> Look:
        """Read, decide, and unless it is `dry` carry it out. Raises Unavailable: no answer of Slurm, or the journal."""
        async with self._looking:
            return await self._look(dry)

    async def _look(self, dry: bool) -> Look:
        now = self._sources.clock()
        if not dry and not self._sources.config().rules and not await self._sources.journal.read(widened.widened):
            return Look(at=now.wall)
        self._refused = {job: told for job, told in self._refused.items() if told[0] > now.mono}
        found = await seen(self._sources, {job: said for job, (_, said) in self._refused.items()})
        judged = await asyncio.to_thread(_judged, found)  # a long queue keeps nobody else waiting
        if not dry:
            judged = await self._carry_out(judged, found.market)
            await self._forget(found)
        return Look(
            at=now.wall,
            judged=tuple(judged[:MOST_KEPT]),
            tallies=_tallies(judged, found.facts),
            running=found.running,
            facts=found.facts,
            problem=f"there is a rule for {', '.join(found.lacking)}, and Slurm has no such" if found.lacking else "",
        )

    async def _carry_out(self, judged: Sequence[Judged], market: Market) -> list[Judged]:
        named = [each for each in judged if each.decision.verdict is not Verdict.LEAVE and each.name]
        named.sort(key=lambda each: each.decision.verdict is Verdict.WIDEN)  # taken back first; the order else stays
        widen = [each for each in named if each.decision.verdict is Verdict.WIDEN]
        if widen:
            rows = [_row(each, market.now) for each in widen]
            await self._sources.journal.act(lambda store: _saved(store, rows))
        await self._put_words(widen)
        applied = await self._changes.apply([Change(name=each.name, to=_to(each, market)) for each in named])
        done = [self._done(each, applied) for each in judged]
        await self._put_words([each for each in done if each.state is State.STAYS or each.refusal])
        return done

    def _done(self, each: Judged, applied: Applied) -> Judged:
        """What became of it. What has started meanwhile is where it should be."""
        if each.decision.verdict is Verdict.LEAVE:
            return each
        name = each.name
        if not name:
            return replace(each, refusal="its array can't be named in one word")
        if (said := applied.refused.get(name)) is None:
            return replace(each, state=State.WIDENED if each.decision.verdict is Verdict.WIDEN else State.STAYS)
        if not _passes(said) and len(self._refused) < MOST_REFUSED:
            self._refused[each.decision.job.job_id] = (self._sources.clock().mono + REFUSED_S, said)
        log.info("overflow.refused", extra={"job": name, "verdict": each.decision.verdict.value, "why": said})
        return replace(each, refusal=said)

    async def _put_words(self, judged: Sequence[Judged]) -> None:
        """Only while a job can't start elsewhere: there it would be written over what keeps it from starting twice."""
        changes = []
        for each in judged:
            word = _word(each)
            if word and word_in(each.queued.comment) != word and each.name:
                changes.append(Change(name=each.name, to=(f"admincomment={worded(each.queued.comment, word)}",)))
        await self._changes.apply(changes[:MOST_WORDS])

    async def _forget(self, found: Seen) -> None:
        now = self._sources.clock()
        if now.mono < self._forget_at:
            return
        self._forget_at = now.mono + FORGET_S
        keep = {one.job.root for one in found.queue} | {one.root for one in found.running}
        await self._sources.journal.act(lambda store: _dropped(store, keep, now.wall))


def _judged(found: Seen) -> list[Judged]:
    by_id = {one.job.job_id: one for one in found.queue}
    decisions = decide([one.job for one in found.queue], found.facts)
    return [Judged(queued=by_id[each.job.job_id], decision=each, state=_state(each, found.facts)) for each in decisions]


def _tallies(judged: Sequence[Judged], facts: Facts) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for each in judged:
        decision = each.decision
        tally = tallies.setdefault(decision.rule, Tally())
        tally.waiting += decision.job.tasks
        if each.state is State.WIDENED:
            row = facts.widened.get(decision.job.root)
            tally.widened += each.tasks
            tally.reserved += each.tasks * (decision.price or (row.price if row else 0.0))
    return tallies


def _state(decision: Decision, facts: Facts) -> State:
    """Before anything is carried out."""
    match decision.verdict:
        case Verdict.WIDEN:
            return State.TO_WIDEN
        case Verdict.RECALL:
            return State.TO_RECALL
    if ours(decision.job, facts):
        return State.WIDENED
    return State.ASKED if facts.cloud in decision.job.partitions else State.STAYS


def _to(each: Judged, market: Market) -> tuple[str, ...]:
    """The partitions; and nodes of pools that are not for it, where there are such."""
    partitions = f"partition={','.join(each.decision.partitions)}"
    widens = each.decision.verdict is Verdict.WIDEN
    kept_from = market.not_for(each.queued.wanted) if widens else ()
    if tuple(sorted(kept_from)) == each.queued.kept_from:
        return (partitions,)
    return (partitions, f"excnodelist={compress(kept_from)}")


def _word(each: Judged) -> str:
    job, verdict = each.decision.job, each.decision.verdict
    asked = job.wish not in (Wish.NONE, Wish.NEVER)
    if each.refusal and each.state is State.TO_WIDEN:
        return f"stays: Slurm refused it: {each.refusal}" if asked and not _passes(each.refusal) else ""
    if each.refusal:
        return ""  # it may have started there
    return each.decision.word if verdict is not Verdict.LEAVE or asked else ""


def _passes(refusal: str) -> bool:
    """Nothing is wrong with the job."""
    return has_started(refusal) or is_busy(refusal)


def _row(each: Judged, now: float) -> Widened:
    job = each.decision.job
    return Widened(
        root=job.root,
        submitted_at=each.queued.submitted_at,
        uid=job.uid,
        rule=each.decision.rule,
        partitions=job.partitions,
        price=each.decision.price,
        account=job.account,
        at=now,
    )


def _saved(store: Store, rows: Sequence[Widened]) -> list[Effect]:
    widened.save(store, rows)
    return []


def _dropped(store: Store, keep: Collection[int], now: float) -> list[Effect]:
    widened.drop(store, keep=keep, now=now)
    return []
