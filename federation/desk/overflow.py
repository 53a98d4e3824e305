"""What users are told of the overflow: which of their waiting jobs may go, which run there, and why others stay."""

import re
from collections.abc import Callable, Iterator, Sequence

from federation.access.local import Caller
from federation.config_overflow import OverflowConfig
from federation.desk.view import OverflowJobView, OverflowRuleView, OverflowView
from federation.errors import Refused, Unavailable
from federation.overflow.burst import Burst, Phase
from federation.overflow.bursts import bursts_of, bursts_of_array, open_bursts
from federation.overflow.looking import Journal
from federation.overflow.loop import Loop
from federation.overflow.widening import Judged, Look, Tally, Widening
from slurm_plugin.slurm.queue import has_element

MOST_LISTED = 1000  # jobs
# A token of the federation's begins with a 0. What waits of an array is `12_[3-9%2]` to squeue: its first element.
_SLURM_JOB = re.compile(r"([1-9]\d{0,9})(?:_(\d{1,9})|_\[(\d{1,9})[-,:%\d]*\])?")


class OverflowAnswers:
    """`loops`: all that the daemon looks at for it, the widening's too."""

    def __init__(
        self, widening: Widening, journal: Journal, config: Callable[[], OverflowConfig], loops: Sequence[Loop]
    ) -> None:
        self._widening, self._journal, self._config, self._loops = widening, journal, config, loops

    async def status(self, caller: Caller, *, dry: bool) -> OverflowView:
        """The last look; `dry`: a fresh one, that says what it would do. Raises Refused, Unavailable."""
        if dry and not caller.admin:
            raise Refused("only an admin may have the queue looked at", hint="fed overflow says what was seen last")
        look = await self._widening.look(dry=True) if dry else self._last()
        config = self._config()
        bursts = await self._journal.read(open_bursts, long=True)
        jobs = [*map(_burst, bursts), *map(_waiting, look.judged)]
        mine = [job for job in jobs if caller.admin or job.uid == caller.uid]
        return OverflowView(
            cluster=config.cluster,
            partition=config.partition,
            at=look.at,
            dry=dry,
            problem=_problem(self._loops, look),
            rules=tuple(_rules(look, config)),
            jobs=tuple(mine[:MOST_LISTED]),
            more=max(0, len(mine) - MOST_LISTED),
        )

    async def job(self, caller: Caller, name: str) -> OverflowJobView:
        """Of one job of Slurm's, by the name that squeue gives it. Raises Refused, Unavailable."""
        job_id, task = slurm_job(name)
        found = [*await self._bursts(job_id, task), *(_waiting(one) for one in self._named(job_id, task))]
        mine = [one for one in found if caller.admin or one.uid == caller.uid]
        if mine:
            return mine[0]
        look = self._last()
        if look.problem:
            raise Unavailable(f"the queue could not be looked at: {look.problem}")
        raise Refused(
            f"no job {name} of yours waits in a partition that has a rule, or ran elsewhere",
            hint=f"vgpu explain says why a job waits here; one that asked for {self._config().partition} itself waits "
            "for room in its pools: fed pools",
        )

    def _last(self) -> Look:
        if self._widening.last is None:
            raise Unavailable("the daemon has not looked at the queue yet", hint="ask again in a few seconds")
        return self._widening.last

    def _named(self, job_id: int, task: int) -> Iterator[Judged]:
        for one in self._last().judged:
            job = one.queued.job
            is_element = job.root == job_id and has_element(one.queued.elements, task)
            if is_element if task >= 0 else job_id in (job.job_id, job.root):
                yield one

    async def _bursts(self, job_id: int, task: int) -> list[OverflowJobView]:
        """Those that run first, and then the newest that did."""
        if task < 0:
            found = await self._journal.read(lambda store: bursts_of(store, job_id) or bursts_of_array(store, job_id))
        else:
            found = await self._journal.read(lambda store: bursts_of_array(store, job_id, task))
        running = [one for one in found if one.phase is not Phase.CLOSED]
        waits = next(self._named(job_id, task), None) is not None
        return [_burst(one) for one in running or ([] if waits else found)]


def slurm_job(name: str) -> tuple[int, int]:
    """JobId and element, -1: of none, by what squeue prints. Raises Refused."""
    match = _SLURM_JOB.fullmatch(name)
    if match is None:
        raise Refused(f"{name[:64]!r} is no job of Slurm's", hint="such as 1234, or 1234_5")
    return int(match[1]), int(match[2] or match[3] or -1)


def _problem(loops: Sequence[Loop], look: Look) -> str:
    """All that is wrong; what keeps several loops from their work, once."""
    told: dict[str, list[str]] = {}
    for loop in loops:
        if loop.problem:
            told.setdefault(loop.problem, []).append(loop.about)
    lines = [f"{', '.join(abouts)}: {why}" for why, abouts in told.items()]
    return "; ".join(lines if look.problem in told or not look.problem else [*lines, look.problem])


def _burst(one: Burst) -> OverflowJobView:
    why = f"ran in {one.pool}" if one.phase is Phase.CLOSED else f"runs in {one.pool}"
    return OverflowJobView(
        job=one.name,
        uid=one.uid,
        partition="",
        state="over" if one.phase is Phase.CLOSED else "running",
        elements=1,
        since=0.0,
        price=0.0,
        pool=one.pool,
        token=str(one.token),
        why=f"{why}: {one.why}" if one.why else why,
    )


def _waiting(one: Judged) -> OverflowJobView:
    decision, job = one.decision, one.decision.job
    return OverflowJobView(
        job=one.name or str(job.job_id),
        uid=job.uid,
        partition=decision.rule,
        state=one.state.value,
        elements=one.tasks,
        since=float(job.since),
        price=round(decision.price, 4),
        pool="",
        token="",
        why=f"Slurm refused it: {one.refusal}" if one.refusal else decision.why,
    )


def _rules(look: Look, config: OverflowConfig) -> Iterator[OverflowRuleView]:
    facts = look.facts
    for name, rule in config.rules.items():
        tally = look.tallies.get(name, Tally())
        yield OverflowRuleView(
            partition=name,
            waiting=tally.waiting,
            widened=tally.widened,
            running=facts.running.get(name, 0) if facts else 0,
            most_jobs=rule.most_jobs,
            spent=round(facts.spent.get(name, 0.0), 4) if facts else 0.0,
            reserved=round(tally.reserved, 4),
            spend_per_day=rule.spend_per_day,
        )
