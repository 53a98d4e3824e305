"""The controller's loop: look, decide, offer, publish, step.

A pass first takes the agents' views as they are, and only then reads Slurm. A job that starts meanwhile shows as used
before it shows as bound, which the counts allow for; the other way round would publish less than is used. A node whose
Gres is to change is always read in the same pass, and read again after. What a pass could not finish, the next one
reads anew: nobody knows what Slurm has done of it.

Crash: whatever was published stays, agents keep their last offers, and the pool serves on; the next controller starts
from what agents and Slurm say.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from slurm_plugin.config import parse_pool
from slurm_plugin.controller import answer, counts, discretion, report
from slurm_plugin.controller.books import Books, Gres
from slurm_plugin.controller.chronicle import Chronicle
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.desk import Desk, Views
from slurm_plugin.controller.discretion import Discretion
from slurm_plugin.controller.drains import Drains
from slurm_plugin.controller.fences import Fence, Fences
from slurm_plugin.controller.firsts import Firsts
from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.controller.holds import Holds
from slurm_plugin.controller.job_ids import Ahead
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.notices import Notices
from slurm_plugin.controller.pause import Pauses
from slurm_plugin.controller.preview import mistakes, preview
from slurm_plugin.controller.records import Records
from slurm_plugin.controller.rescue import Rescue
from slurm_plugin.controller.roster import Member, Roster
from slurm_plugin.controller.shopfront import Shopfront
from slurm_plugin.controller.state import Action, Agent, Decision
from slurm_plugin.controller.turns import Turns
from slurm_plugin.document import check_length
from slurm_plugin.errors import ConfigError, SlurmError
from slurm_plugin.explanation_wire import to_wire
from slurm_plugin.history import Entry, What
from slurm_plugin.history_wire import to_wire as history_to_wire
from slurm_plugin.link.server import Caller, Send
from slurm_plugin.pool import Mode, PoolConfig
from slurm_plugin.ports import Slurm
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.wire import step_to_wire

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.02  # events that come together are looked at together
POLL_S = 0.5  # how often Slurm's jobs are read when nothing is heard
POLL_SHARE = 10  # ... but that takes at most one part in so many of slurmctld's time
EVENT_SHARE = 2  # and readings for events, one part in so many
# ... and never waited for longer: a reading that waited for a slurmctld on its way up says nothing of its load.
POLL_MOST_S, EVENT_MOST_S = 10.0, 2.0
RETRY_S = 1.0  # after a pass that failed
TOLD_S = 600.0  # something beside the passes that ran for so long before it failed is no lasting problem
FAILURES_MAX = 60  # passes that fail for a reason that is not Slurm's, one after the other, before we give up


class Engine:
    """The use cases of the controller, on one event loop. It is the link's PoolHandler."""

    def __init__(
        self,
        config: PoolConfig,
        slurm: Slurm,
        *,
        reload: Callable[[], PoolConfig],
        operators: Iterable[int] = (0,),
        clock: Callable[[], float] = time.time,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reload = reload
        keep = Keep(config.controller.state_dir, config.controller.catalogue)
        self.desk = Desk(
            config=config,
            roster=Roster(config, keep.load(config.hosts), clock, tick),
            books=Books(slurm, config.gres),
            shop=Shopfront(keep, tuple(operators)),
            clock=clock,
            tick=tick,
        )
        self._records = Records(self.desk, keep)
        self._fences = Fences(self.desk)
        self._chronicle = Chronicle(HistoryFile(config.controller.state_dir), clock, self.desk.problems)
        self._pauses = Pauses(self.desk, config.controller.state_dir, self._chronicle.note)
        self._rescue = Rescue(self.desk, slurm)
        self._drains = Drains(self.desk, slurm)
        self._notices = Notices(self.desk, slurm)
        self._holds = Holds(self.desk, slurm, self._chronicle.note)
        self._firsts = Firsts(self.desk, slurm)
        self._discretion = Discretion(self.desk, slurm)
        self._ahead = Ahead(self.desk, slurm, path) if (path := config.controller.job_ids) else None
        self._applied: PoolConfig | None = None  # what the next pass is to follow
        self._asking = Turns()  # beside the loop
        self._reading = Turns()
        self._applying = asyncio.Lock()
        self._failures = 0
        self.started_at = clock()
        self.passes = 0
        self.last_pass_s = 0.0

    # -- what the link hands in

    async def session(self, caller: Caller, received: AsyncIterator[pb.FromAgent], send: Send) -> None:
        desk = self.desk
        hello = await desk.roster.welcome(received, caller.peer)
        member = hello.member
        log.info("agent.connected", extra={"node": member.name, "peer": caller.peer})
        desk.told.pop(member.name, None)
        desk.steps.forget(member.name)
        desk.look_at([member.name])
        try:
            await desk.roster.serve(
                hello, send, lambda: asyncio.create_task(self._listen(member, member.outbox, received))
            )
        finally:
            log.info("agent.gone", extra={"node": member.name})
            desk.look_at([member.name])

    async def _listen(self, member: Member, session: object, received: AsyncIterator[pb.FromAgent]) -> None:
        await self._records.remember(member)
        async for message in received:
            if member.outbox is not session:
                return  # it was put out: what it says is not of the node as the other agent has it
            kind = message.WhichOneof("message")
            if kind == "inventory" and message.inventory.node == member.name:
                if member.heard(message.inventory, self.desk.clock()):
                    await self._records.remember(member)
            elif kind == "released":
                released = message.released
                self._fences.ask(Fence(member=member, job_id=released.job_id, slices=tuple(released.slices)))
            elif kind == "result":
                self.desk.steps.ended(message.result.id, message.result.error, self.desk.tick())
                self._chronicle.ended(message.result.id, message.result.error)
            self.desk.look_at([member.name])

    async def status(self, caller: Caller) -> pb.PoolStatus:
        life = report.Life(started_at=self.started_at, passes=self.passes, last_pass_s=self.last_pass_s)
        own = await self._discretion.own(caller)
        return discretion.of_status(report.status(self.desk, life), own)

    async def explain(self, caller: Caller, job_id: int, element: int | None) -> pb.ExplainReply:
        """Why a job waits, or an element of an array. Raises RequestError."""
        async with self._asking.turn(caller):
            told = await answer.explained(self.desk, caller, job_id, element)
            return to_wire(discretion.of_explanation(told, await self._discretion.own(caller)))

    async def plan(self, caller: Caller, pool_yaml: str) -> pb.PlanReply:
        """What would be done for another pool.yaml, or is being done for this one. Raises ConfigError, RequestError."""
        check_length(pool_yaml, "pool.yaml")
        async with self._asking.turn(caller):
            other = await asyncio.to_thread(parse_pool, pool_yaml) if pool_yaml else None
            told = await preview(self.desk, other or self._applied or self.desk.config)
            return discretion.of_plan(told, await self._discretion.own(caller))

    async def apply(self, caller: Caller) -> pb.ApplyReply:
        """Take the file as it is now, with the next pass.

        Raises ConfigError for what can't be right in this Slurm and on these GPUs, SlurmError when Slurm does not tell;
        then nothing changes.
        """
        config, now = await asyncio.to_thread(self._reload), self.desk.config
        fixed = (config.controller, config.gres, config.wait_partition)
        if fixed != (now.controller, now.gres, now.wait_partition):
            raise ConfigError(
                "gres:, wait_partition: and controller: of pool.yaml can't change while the controller runs",
                hint="systemctl restart vgpu-controller",
            )
        async with self._applying:
            if wrong := await mistakes(self.desk, config):
                more = f"; {len(wrong) - 1} more mistakes (vgpu plan lists them)" if len(wrong) > 1 else ""
                raise ConfigError(f"pool.yaml: {wrong[0]}{more}", hint="nothing was changed: mend it, and apply again")
            self._chronicle.note(Entry(at=self.desk.clock(), what=What.APPLIED, uid=caller.uid))
            self._applied = config
            self.desk.wake.set()
            return pb.ApplyReply(plan=await preview(self.desk, config))

    async def pause(self, caller: Caller, wanted: bool, reason: str) -> pb.PauseReply:
        """Raises RequestError."""
        return await self._pauses.follow(caller, wanted=wanted, reason=reason)

    async def history(self, caller: Caller, node: str, since: float, limit: int) -> pb.HistoryReply:
        """Raises RequestError."""
        async with self._reading.turn(caller):
            told = history_to_wire(await self._chronicle.read(node, since, limit))
            return discretion.of_history(told, await self._discretion.own(caller))

    # -- the loop

    async def run(self) -> None:
        """Pass after pass, for ever; fence after fence, and rescue after rescue, beside them."""
        async with asyncio.TaskGroup() as group:
            beside = (self._rescue, self._drains, self._holds, self._firsts, self._chronicle, self._notices)
            for one in beside:
                group.create_task(self._lasting(type(one).__name__.lower(), one.run))
            if self._ahead:
                group.create_task(self._lasting("ahead", self._ahead.run))
            group.create_task(self._fences.run())
            group.create_task(self._loop())

    async def _lasting(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """What must not end the pool's bookkeeping begins anew after an error of ours, and is told of meanwhile."""
        while True:
            began = time.monotonic()
            try:
                await run()
            except Exception as error:
                self.desk.problems[name] = f"{name} began anew after {type(error).__name__}: {error}"
                log.exception("beside.failed", extra={"what": name})
            await asyncio.sleep(RETRY_S)
            if time.monotonic() - began > TOLD_S:
                self.desk.problems.pop(name, None)

    async def _loop(self) -> None:
        """An error ends a pass, never the loop; FAILURES_MAX of ours in a row are for whoever starts us anew."""
        while True:
            await self._until_due()
            began = time.monotonic()
            try:
                await self._pass()
            except SlurmError as error:
                self.desk.problems["slurm"] = str(error)
                log.warning("pass.slurm", extra={"error": str(error), "transient": error.transient})
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                self._failures += 1
                self.desk.problems["pass"] = f"{self._failures} passes failed: {type(error).__name__}: {error}"
                log.exception("pass.failed", extra={"failures": self._failures, "bound": FAILURES_MAX})
                if self._failures >= FAILURES_MAX:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                self._failures = 0
                self.desk.problems.pop("slurm", None)
                self.desk.problems.pop("pass", None)
            self.passes += 1
            self.last_pass_s = time.monotonic() - began

    async def _until_due(self) -> None:
        query_s = self.desk.books.query_s
        await asyncio.sleep(min(EVENT_MOST_S, max(DEBOUNCE_S, EVENT_SHARE * query_s)))
        try:
            async with asyncio.timeout(min(POLL_MOST_S, max(POLL_S, POLL_SHARE * query_s))):
                await self.desk.wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(DEBOUNCE_S)

    async def _pass(self) -> None:
        desk = self.desk
        async with desk.apart:
            self._take_in()
            desk.wake.clear()
            changed, desk.changed = desk.changed, set()
            desk.overtaken.clear()
            views = desk.views()
        try:
            await self._act(changed, views)
        except BaseException:
            desk.changed |= changed
            desk.books.read_all_next()
            raise

    def _take_in(self) -> None:
        """Follow the pool.yaml that was applied."""
        desk, config, self._applied = self.desk, self._applied, None
        if config is None:
            return
        desk.config = config
        desk.roster.follow(config)
        desk.told.clear()
        desk.steps.let_go(desk.tick())
        for member in desk.roster.values() if config.mode is Mode.MANAGE else ():
            member.say(pb.ToAgent(retry=pb.Retry()))
        desk.books.read_all_next()

    async def _act(self, changed: set[str], views: Views) -> None:
        desk = self.desk
        partitions = (*desk.config.partitions, desk.config.wait_partition)
        read = await desk.books.read(changed, desk.roster, partitions)
        await self._set_shop()
        await self._records.again()
        decision = await self._decide(views)
        if decision.gres.keys() - read or self._takes_away(decision):
            # Decided on an old reading, or less is to be published, which a job that has just ended does not need and
            # one that has just started forbids: look again.
            async with desk.apart:
                again = {*decision.gres, *desk.overtaken}
                desk.overtaken.clear()
                views = desk.views()
            read |= await desk.books.read(again, desk.roster, partitions)
            decision = await self._decide(views)
        if desk.decision is not None:
            decision = decision.without(desk.overtaken, desk.decision)
        desk.decision, desk.decided_for = decision, desk.config
        desk.steps.settled((plan.gpu for plan in decision.plan if plan.action is Action.KEEP), desk.tick())
        self._chronicle.see(decision)
        spoke = desk.tell(decision.offers)
        self._rescue.see(decision.lost)
        if desk.config.mode is Mode.MANAGE:
            self._drains.see()
            self._holds.see()
            self._firsts.see(decision.first)
            await self._carry_out(decision, views, read, spoke=spoke)

    def _takes_away(self, decision: Decision) -> bool:
        nodes, names = self.desk.books.nodes, self.desk.config.gres
        return any(counts.shrinks(names, nodes[name].gres, gres) for name, gres in decision.gres.items())

    async def _carry_out(self, decision: Decision, views: Views, read: set[str], *, spoke: bool) -> None:
        desk = self.desk
        ready = {name: gres for name, gres in decision.gres.items() if name in read and desk.books.settled(name)}

        async def anew() -> Gres:
            return (await self._decide(views)).gres

        written = await desk.books.write(ready, desk.overtaken)
        short = await desk.books.verify(written, anew, desk.overtaken)
        if short:
            desk.problems["counts"] = f"could not bring {', '.join(short[:10])} up to what is used"
        else:
            desk.problems.pop("counts", None)
        self._send_steps(decision, views)
        again = {*short, *(decision.gres.keys() - read)}
        # What was withheld and published now may be destroyed by a pass that finds it so.
        if again or ((spoke or written) and any(p.action is Action.CHANGE for p in decision.plan)):
            desk.look_at(again)

    async def _decide(self, views: Views) -> Decision:
        """On a thread: fences are decided meanwhile."""
        return await asyncio.to_thread(decide, self.desk.state(views, self.desk.config))

    def _send_steps(self, decision: Decision, views: Views) -> None:
        desk, plans = self.desk, {plan.gpu: plan for plan in decision.plan} if decision.steps else {}
        same = {
            name for name in decision.steps if name in desk.roster and desk.roster[name].outbox is views.spoke[name]
        }
        for name, steps in decision.steps.items():
            for step in steps if name in same - desk.overtaken and desk.pause is None else ():
                number = self.desk.steps.started(name, step.gpu, self.desk.tick())
                log.info("step.sent", extra={"node": name, "gpu": step.gpu, "step": number})
                self._chronicle.sent(number, step, plans[step.gpu], for_queue=step.gpu in decision.recuts.targets)
                self.desk.roster[name].say(pb.ToAgent(step=step_to_wire(number, step)))

    async def _set_shop(self) -> None:
        desk = self.desk
        facts = {name: (desk.roster[name].geometry, node) for name, node in desk.books.nodes.items()}
        desk.shop.follow(desk.config, facts)
        if desk.config.mode is Mode.MANAGE:
            now = desk.tick()
            expected = {n for n, m in desk.roster.items() if not m.geometry and m.agent(now) is Agent.EXPECTED}
            await self._records.written("catalogue", desk.config.controller.catalogue, desk.shop.write(expected))
