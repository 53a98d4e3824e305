"""What a local user may ask about, and do with, jobs: his own; an admin with all."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from uuid import UUID

from federation.access.local import Caller
from federation.desk.talk import text
from federation.desk.view import (
    BudgetView,
    FedJobList,
    FedJobView,
    PeerList,
    PeerView,
    PoolList,
    PoolView,
    ReasonView,
    StrangerView,
    TransferView,
)
from federation.engine.origin import DAY_S
from federation.errors import Refused
from federation.model.job import Job
from federation.model.states import AT_TARGET, Origin
from federation.model.token import TASK_BITS, array_of
from federation.peer.faults import Faults
from federation.policy.choose import EACH, Pool
from federation.ports import now
from federation.runner import Runner
from federation.stage.mover import Mover
from federation.store.store import Store

MOST_LISTED = 10_000
MOST_BUDGETS = 1000
LEAST_PREFIX = 6  # characters of a job's token
WAIT_POLL_S = 0.2
REMARK_S = 3.0  # how long a job does not go on before who waits for it is told why
MOVING_S = 10.0  # between two words of how far its files are


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What answers are made from. `addresses`: of peers, "" for those that dial us."""

    runner: Runner
    mover: Mover
    addresses: dict[str, str]
    faults: Faults = field(default_factory=Faults)


class Answers:
    def __init__(self, office: Office) -> None:
        self._runner, self._mover, self._addresses = office.runner, office.mover, office.addresses
        self._faults = office.faults

    async def find(self, caller: Caller, told: object) -> Job:
        """By its token or the begin of it; without one, the caller's newest. Raises Refused."""
        if not told:
            return await self._newest(caller)
        found = await self.find_all(caller, told)
        if len(found) != 1:
            raise Refused(f"{told} is an array of {len(found)} jobs", hint=f"name one, such as {_label(found[0])}")
        return found[0]

    async def find_all(self, caller: Caller, told: object) -> list[Job]:
        """One job, or all of one array, in the order of their numbers; of the newest likewise. Raises Refused."""
        if not told:
            newest = await self._newest(caller)
            array = array_of(newest.token)
            return [newest] if array is None else await self.find_all(caller, array[0])
        begin, _, task = str(told).partition("_")
        digits = begin.replace("-", "").lower()
        try:
            low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
            number = int(task) if task else None
        except ValueError:
            raise Refused(f"{str(told)[:64]!r} is no job", hint="fed jobs lists them") from None
        if len(digits) < LEAST_PREFIX:
            raise Refused(f"{told} is too short", hint=f"give {LEAST_PREFIX} characters of the job's token or more")
        found = await self._runner.read(lambda store: store.jobs_between(low, high, MOST_LISTED), long=True)
        mine = [job for job in found if caller.may_see(job.user)]
        if number is not None:
            mine = [job for job in mine if (array_of(job.token) or ("", None))[1] == number]
        arrays = {array_of(job.token) and job.token.int >> TASK_BITS for job in mine}
        if not mine or len(arrays) > 1 or (None in arrays and len(mine) > 1):
            raise Refused(f"{len(mine) or 'no'} jobs of yours begin with {told}", hint="fed jobs lists them")
        return mine

    async def _newest(self, caller: Caller) -> Job:
        newest = await self._runner.read(lambda store: store.newest_jobs(caller.user, 1))
        if not newest:
            raise Refused(f"{caller.user} has no job here", hint="fed submit --help")
        return newest[0]

    async def jobs(self, caller: Caller, everybody: bool, done: bool, most: int) -> FedJobList:
        user = "" if everybody and caller.admin else caller.user
        most = max(1, min(most, MOST_LISTED))

        def read(store: Store) -> list[Job]:
            return store.newest_jobs(user, most) if done else store.open_jobs(user, most)

        found = await self._runner.read(read, long=True)
        return await self.views([job for job in found if caller.may_see(job.user)])

    async def others(self, caller: Caller, done: bool) -> int:
        """Jobs that an admin who asked about his own was not told of."""
        if not caller.admin:
            return 0
        return await self._runner.read(lambda store: store.others(caller.user, done=done), long=True)

    async def wait(self, jobs: list[Job]) -> AsyncIterator[FedJobView | str]:
        """Each once it is done, in the order they were given; and why one does not go on, after a while."""
        for job in jobs:
            known, told, since = job, "", time.monotonic()
            moving_at = since
            while known.state is not Origin.DONE:
                await asyncio.sleep(WAIT_POLL_S)
                known = await self.again(known)
                why = self._stopped(known)
                if why == told:
                    since = time.monotonic()
                elif time.monotonic() - since >= REMARK_S:
                    told = why
                    yield f"job {_label(known)} is {known.state.value}: {why or 'it goes on'}"
                if (moving := self._moving(known)) and time.monotonic() - moving_at >= MOVING_S:
                    moving_at = time.monotonic()
                    yield f"job {_label(known)}: {moving}"
            (done,) = (await self.views([known])).jobs
            yield done

    def _stopped(self, job: Job) -> str:
        """What keeps it from going on; "": nothing does."""
        if job.state is Origin.QUEUED:
            return job.why
        progress = self._mover.progress.get(job.key)
        return progress.why if progress is not None else ""

    def _moving(self, job: Job) -> str:
        progress = self._mover.progress.get(job.key)
        if progress is None or progress.why or not progress.total:
            return ""
        return f"{progress.moved >> 20} of {progress.total >> 20} MiB of {progress.what}"

    async def again(self, job: Job) -> Job:
        """As it is now."""
        found: Job | None = await self._runner.read(lambda store: store.job(job.token))
        return found or job

    async def act(self, caller: Caller, told: object, what: str, signal: int) -> FedJobList:
        """To a job, or to those of an array to which it can be done. Raises Refused when it can be done to none."""
        jobs = await self.find_all(caller, told)
        refused: list[Refused] = []
        for job in jobs:
            try:
                await self._act(caller, job.token, what, signal)
            except Refused as error:
                refused.append(error)
        if len(refused) == len(jobs):
            raise refused[0]
        return await self.views([await self.again(job) for job in jobs])

    async def _act(self, caller: Caller, token: UUID, what: str, signal: int) -> None:
        if what == "cancel":
            await self._runner.cancel(token)
        elif what == "give_up":
            await self._runner.give_up(token, by_admin=caller.admin)
        elif what == "requeue":
            await self._check_requeue(token)
            await self._runner.requeue(token)
        else:
            await self._runner.signal(token, signal)

    async def _check_requeue(self, token: UUID) -> None:
        """Raises Refused for a job of the Slurm here: what it wrote is in its files already."""
        from federation.overflow.burst import Phase
        from federation.overflow.bursts import by_token

        burst = await self._runner.read(lambda store: by_token(store, token))
        if burst is not None and burst.phase is not Phase.CLOSED:
            raise Refused(f"it is job {burst.name} of the Slurm here", hint=f"scontrol requeue {burst.name}")

    async def peers(self) -> PeerList:
        engine, addresses = self._runner.engine, self._addresses

        def read(store: Store) -> tuple[PeerView, ...]:
            sent = [(site, count) for (state, site, _), count in store.jobs().items() if state in AT_TARGET]
            return tuple(
                PeerView(
                    site=site.name,
                    address=addresses.get(site.name, ""),
                    linked=site.linked,
                    silent_s=round(max(0.0, time.monotonic() - site.heard), 1),
                    pools=len(site.rooms),
                    jobs=sum(count for name, count in sent if name == site.name),
                    why="" if site.linked else self._faults.of(site.name),
                )
                for site in engine.sites.all()
                if site.name != engine.name
            )

        found = await self._runner.read(read)
        lately = self._faults.lately().items()
        return PeerList(
            site=engine.name,
            draining=self._runner.draining,
            trouble=self._runner.trouble,
            peers=found,
            turned_away=tuple(
                StrangerView(site=site, ago_s=round(ago_s, 1), why=why)
                for site, (ago_s, why) in lately
                if site not in engine.sites
            ),
        )

    async def pools(self) -> PoolList:
        engine = self._runner.engine
        budgets = engine.origin.rules.placing.budget_per_day.items()
        at = now()

        def read(store: Store) -> PoolList:
            today = int(at.wall // DAY_S)
            own = [(account, money) for account, money in budgets if account != EACH][:MOST_BUDGETS]
            spent = (
                BudgetView(account=account, per_day=money, spent=store.spent(account, today)) for account, money in own
            )
            pools = engine.sites.pools(store.jobs(), at)
            return PoolList(pools=tuple(map(_pool, pools)), budgets=tuple(spent))

        return await self._runner.read(read)

    async def views(self, jobs: Sequence[Job]) -> FedJobList:
        """With the Slurm job that each is."""
        from federation.overflow.bursts import names

        slurms = await self._runner.read(lambda store: names(store, (job.token for job in jobs)), long=True)
        return FedJobList(jobs=tuple(self.view(job, slurms.get(job.token, "")) for job in jobs))

    def view(self, job: Job, slurm_job: str = "") -> FedJobView:
        outcome, array = job.outcome, array_of(job.token)
        progress = self._mover.progress.get(job.key) if job.state is not Origin.DONE else None
        transfer = TransferView(**asdict(progress)) if progress is not None else None
        return FedJobView(
            job=str(job.token),
            array=array[0] if array else "",
            task=array[1] if array else None,
            state=job.state.value,
            name=text(job.name),
            user=job.user,
            account=job.account,
            site=job.site,
            pool=job.pool,
            attempt=job.attempt,
            why=job.why,
            accepted_at=job.accepted_at,
            started_at=outcome.started_at if outcome else job.started_at,
            ended_at=outcome.ended_at if outcome and outcome.ended_at else job.ended_at,
            end=outcome.end.value if outcome else "",
            exit_code=outcome.exit_code if outcome else None,
            signal=outcome.signal if outcome else None,
            cost=round(job.cost, 4),
            stdout_size=outcome.stdout_size if outcome else 0,
            stderr_size=outcome.stderr_size if outcome else 0,
            reasons=tuple(ReasonView(pool=pool, reason=reason) for pool, reason in job.reasons),
            transfer=transfer,
            slurm_job=slurm_job,
        )


def _label(job: Job) -> str:
    array = array_of(job.token)
    return str(job.token) if array is None else f"{array[0]}_{array[1]}"


def _pool(pool: Pool) -> PoolView:
    return PoolView(
        pool=pool.name,
        linked=pool.linked,
        free_jobs=max(0, pool.room.free_jobs - pool.sent),
        free_cpus=pool.room.free_cpus,
        slices=dict(pool.room.slices),
        price_per_hour=pool.room.price_per_hour,
        gpu_price_per_hour=pool.room.gpu_price_per_hour,
        longest_s=pool.room.longest_s,
        why=pool.room.why,
    )
