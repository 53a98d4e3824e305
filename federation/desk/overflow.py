"""What users are told of the overflow: which of their waiting jobs may go, which run there, and why others stay."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from federation.access.local import Caller
from federation.config_overflow import OverflowConfig
from federation.desk.view import OverflowJobView, OverflowRuleView, OverflowView, ReasonView
from federation.errors import Refused, Unavailable
from federation.model.job import Job
from federation.overflow.burst import Burst, Phase
from federation.overflow.bursts import bursts_of, bursts_of_array, open_bursts
from federation.overflow.looking import Journal
from federation.overflow.loop import Loop
from federation.overflow.notes import state_of
from federation.overflow.widening import Judged, Look, Tally, Widening
from federation.policy.choose import MAX_REASONS
from federation.store.store import Store
from slurm_plugin.slurm.queue import has_element

MOST_LISTED = 1000  # jobs
OVER = "over"
_WAITING, _RUNNING, _STOPPING = "waiting", "running", "stopping"
_DOES = {
    _WAITING: "waits to start in",
    _RUNNING: "runs in",
    _STOPPING: "is being ended in",
    "ended": "has ended in",
    OVER: "ran in",
}
_NEVER_RAN = "was to run in"
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
        look = await self._widening.look(dry=True) if dry else await self._last()
        config = self._config()

        def read(store: Store) -> list[OverflowJobView]:
            return _mine(caller, (_burst(one, store.job(one.token)) for one in open_bursts(store)))

        there = await self._journal.read(read, long=True)
        here = {one.job for one in there}  # they started after the look, or Slurm has them in its queue again
        waiting = [one for one in (_waiting(judged, look) for judged in look.judged) if one.job not in here]
        mine = [*there, *_mine(caller, waiting)]
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
        look = await self._last()
        waiting = _mine(caller, (_waiting(one, look) for one in look.judged if _is(one, job_id, task)))
        there = _mine(caller, await self._journal.read(lambda store: _bursts(store, job_id, task)))
        if found := [one for one in there if one.state != OVER] or waiting or there:
            return found[0]
        if look.problem:
            raise Unavailable(f"the queue could not be looked at: {look.problem}")
        raise Refused(
            f"no job {name} of yours waits in a partition that has a rule or in {self._config().partition}, or ran "
            "elsewhere",
            hint="vgpu explain says why a job waits here",
        )

    async def _last(self) -> Look:
        look = await self._widening.asked()
        if look is None:
            raise Unavailable("the daemon has not looked at the queue yet", hint="ask again in a few seconds")
        return look


def _mine(caller: Caller, jobs: Iterable[OverflowJobView]) -> list[OverflowJobView]:
    return [one for one in jobs if caller.admin or one.uid == caller.uid]


def _is(one: Judged, job_id: int, task: int) -> bool:
    job = one.queued.job
    is_element = job.root == job_id and has_element(one.queued.elements, task)
    return is_element if task >= 0 else job_id in (job.job_id, job.root)


def _bursts(store: Store, job_id: int, task: int) -> list[OverflowJobView]:
    """Newest first."""
    found = bursts_of_array(store, job_id, task) if task >= 0 else bursts_of(store, job_id)
    return [_burst(one, store.job(one.token)) for one in found or (bursts_of_array(store, job_id) if task < 0 else [])]


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


def _burst(one: Burst, job: Job | None) -> OverflowJobView:
    """`job`: the federation's, which may have begun there or not; None: it is not handed over yet."""
    state = OVER if one.phase is Phase.CLOSED else state_of(job)
    if one.phase is Phase.STOPPING and state in (_WAITING, _RUNNING):
        state = _STOPPING
    does = _NEVER_RAN if state == OVER and not _ran(job) else _DOES[state]
    why = one.why or (job.why if job is not None and state == _WAITING else "")
    return OverflowJobView(
        job=one.name,
        uid=one.uid,
        partition="",
        state=state,
        elements=1,
        since=0.0,
        price=0.0,
        pool=one.pool,
        token=str(one.token),
        why=f"{does} {one.pool}: {why}" if why else f"{does} {one.pool}",
        reasons=(),
    )


def _ran(job: Job | None) -> bool:
    """Whether any code of the user's ran there; of a job that is forgotten nobody says that it did not."""
    return job is None or (job.outcome.started_at if job.outcome else job.started_at) is not None


def _waiting(one: Judged, look: Look) -> OverflowJobView:
    decision, job = one.decision, one.decision.job
    offers = look.facts.offers.get(job.job_id, ()) if look.facts else ()
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
        reasons=tuple(ReasonView(pool=offer.pool, reason=offer.no or offer.says) for offer in offers[:MAX_REASONS]),
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
