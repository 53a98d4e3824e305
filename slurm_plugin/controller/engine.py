"""The controller's loop: look, decide, offer, publish, step.

A pass first takes the agents' views as they are, and only then reads Slurm. A job that starts meanwhile shows as used
before it shows as bound, which the counts allow for; the other way round would publish less than is used. A node whose
Gres is to change is always read in the same pass, and read again after.

Crash: whatever was published stays, agents keep their last offers, and the pool serves on; the next controller starts
from what agents and Slurm say.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_plugin import catalogue
from slurm_plugin.config import parse_pool
from slurm_plugin.controller import counts, report, wire
from slurm_plugin.controller.books import Books
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.offered import Offered, offered
from slurm_plugin.controller.roster import Member, Roster
from slurm_plugin.controller.state import Action, Decision, NodeState, Serving, State
from slurm_plugin.controller.steps import Steps
from slurm_plugin.errors import ConfigError, SlurmError
from slurm_plugin.link.server import Caller, Send
from slurm_plugin.pool import Mode, PoolConfig
from slurm_plugin.ports import Slurm
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.02  # events that come together are looked at together; a fence does not wait for others
POLL_BUSY_S = 0.5  # how often Slurm's jobs are read while some wait
POLL_S = 2.0  # how often otherwise
RETRY_S = 1.0  # after Slurm did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """What the agents had told at one moment. GPUs held then stay so for the pass: an answer that comes later says
    nothing about what is seen here."""

    nodes: Mapping[str, NodeState]
    held: frozenset[str]


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
    ) -> None:
        self.config = config
        self._reload = reload
        self._operators = tuple(operators)
        self._clock = clock
        self._keep = Keep(config.controller.state_dir, config.controller.catalogue)
        self.roster = Roster(config, self._keep.load(config.hosts), clock)
        self.books = Books(slurm, config.gres)
        self.steps = Steps()
        self.problems: dict[str, str] = {}  # of the pool, by what they are about
        self.decision: Decision | None = None
        self.offered: Offered | None = None
        self._offered_for: object = None
        self._text = ""  # the catalogue as it must be
        self._written = self._keep.present_catalogue()
        self._planning = asyncio.Lock()
        self._wake = asyncio.Event()
        self._urgent = False
        self._changed: set[str] = set()  # nodes whose agent said something since the last pass
        self._fences: list[tuple[Member, int]] = []  # (agent, job) whose epilog waits for a verdict
        self._present: dict[str, str] = {}
        self._told: dict[str, tuple[object, ...]] = {}  # node -> what its agent was sent last
        self.started_at = clock()
        self.passes = 0
        self.last_pass_s = 0.0

    # -- what the link hands in

    async def session(self, caller: Caller, received: AsyncIterator[pb.FromAgent], send: Send) -> None:
        member = await self.roster.welcome(received)
        log.info("agent.connected", extra={"node": member.name, "peer": caller.peer})
        await self._remember(member)
        self._told.pop(member.name, None)
        self.steps.forget(member.name)
        self._event(member)
        try:
            await self.roster.serve(member, send, lambda: asyncio.create_task(self._listen(member, received)))
        finally:
            log.info("agent.gone", extra={"node": member.name})
            self._event(member)

    async def _listen(self, member: Member, received: AsyncIterator[pb.FromAgent]) -> None:
        async for message in received:
            kind = message.WhichOneof("message")
            if kind == "inventory" and message.inventory.node == member.name:
                if member.heard(message.inventory, self._clock()):
                    await self._remember(member)
            elif kind == "released":
                self._fences.append((member, message.released.job_id))
                self._urgent = True
            elif kind == "result":
                self.steps.ended(message.result.id, message.result.error, self._clock())
            self._event(member)

    async def _remember(self, member: Member) -> None:
        inventory, where = member.inventory, self.config.controller.state_dir
        if inventory is not None:
            await self._written_to("state", where, lambda: self._keep.inventory(member.name, inventory))

    def _event(self, member: Member) -> None:
        self._changed.add(member.name)
        self._wake.set()

    @property
    def catalogue_text(self) -> str:
        """The catalogue as it must be; empty before anything is known."""
        return self._text

    async def status(self) -> pb.PoolStatus:
        return report.status(self)

    async def plan(self, pool_yaml: str) -> pb.PlanReply:
        """What would be done for another pool.yaml, or is being done for this one. Raises ConfigError."""
        async with self._planning:  # any user may ask: one at a time, beside the loop
            config = await asyncio.to_thread(parse_pool, pool_yaml) if pool_yaml else self.config
            return await self._plan(config)

    async def apply(self, caller: Caller) -> pb.ApplyReply:
        """Take the file as it is now. Raises ConfigError, and then nothing has changed."""
        config = self._reload()
        if (config.controller, config.gres) != (self.config.controller, self.config.gres):
            raise ConfigError(
                "gres: and controller: of pool.yaml can't change while the controller runs",
                hint="systemctl restart vgpu-controller",
            )
        log.info("pool.applied", extra={"uid": caller.uid})
        if config.groups != self.config.groups and self.decision is not None:
            self.decision = replace(self.decision, assigned={})
        self.config = config
        self.roster.follow(config)
        self._told.clear()
        self.steps.let_go(self._clock())
        for member in self.roster.values() if config.mode is Mode.MANAGE else ():
            member.say(pb.ToAgent(retry=pb.Retry()))
        self.books.read_all_next()
        self._wake.set()
        return pb.ApplyReply(plan=await self._plan(config))

    async def _plan(self, config: PoolConfig) -> pb.PlanReply:
        groups = {host: group for group in config.groups for host in group.hosts}
        views = self._views()
        known = {name: replace(view, group=groups[name]) for name, view in views.nodes.items() if name in groups}
        decision = await asyncio.to_thread(decide, self._state(replace(views, nodes=known), config))
        unknown = sorted(name for name in groups if name not in known or self.roster[name].gpus is None)
        problems = {name: tuple(lines) for name, lines in decision.problems.items()}
        if unknown:
            shown = ", ".join(unknown[:10]) + (" ..." if len(unknown) > 10 else "")
            problems[""] = (f"no agent has told of the GPUs of {shown}",)
        return wire.plan_message(decision.plan, problems)

    # -- the loop

    async def run(self) -> None:
        """Pass after pass, for ever. An error of Slurm's ends a pass, never the loop."""
        while True:
            await self._until_due()
            began = time.monotonic()
            fences, self._fences = self._fences, []
            try:
                await self._pass()
            except SlurmError as error:
                self.problems["slurm"] = str(error)
                log.warning("pass.slurm", extra={"error": str(error), "transient": error.transient})
                self._answer(fences)  # an epilog never waits for a Slurm that is away
                await asyncio.sleep(RETRY_S)
            else:
                self.problems.pop("slurm", None)
                self._answer(fences)
            self.passes += 1
            self.last_pass_s = time.monotonic() - began

    async def _until_due(self) -> None:
        waiting = any(job.eligible for job in self.books.jobs)
        try:
            await asyncio.wait_for(self._wake.wait(), POLL_BUSY_S if waiting else POLL_S)
        except TimeoutError:
            return
        if not self._urgent:
            await asyncio.sleep(DEBOUNCE_S)

    async def _pass(self) -> None:
        self._wake.clear()
        self._urgent = False
        changed, self._changed = self._changed, set()
        views = self._views()
        read = await self.books.read(changed, self.roster)
        await self._follow_geometry()
        decision = self._decide(views)
        if decision.gres.keys() - read or self._takes_away(decision):
            # Decided on an old reading, or less is to be published, which a job that has just ended does not need and
            # one that has just started forbids: look again.
            views = self._views()
            read |= await self.books.read(decision.gres, self.roster)
            decision = self._decide(views)
        self.decision = decision
        if self.config.mode is Mode.MANAGE:
            await self._carry_out(decision, views, read)

    def _takes_away(self, decision: Decision) -> bool:
        return any(
            counts.shrinks(self.config.gres, self.books.nodes[name].gres, gres) for name, gres in decision.gres.items()
        )

    async def _carry_out(self, decision: Decision, views: Views, read: set[str]) -> None:
        spoke = self._tell_offers(decision)
        ready = {name: gres for name, gres in decision.gres.items() if name in read}
        short = await self.books.publish(ready, lambda: self._decide(views).gres)
        if short:
            self.problems["counts"] = f"could not bring {', '.join(short[:10])} up to what is used"
        else:
            self.problems.pop("counts", None)
        self._send_steps(decision)
        again = {*short, *(decision.gres.keys() - read)}
        # What was withheld and published now may be destroyed by a pass that finds it so.
        if again or ((spoke or ready) and any(p.action is Action.CHANGE for p in decision.plan)):
            self._changed |= again
            self._wake.set()

    def _views(self) -> Views:
        now = self._clock()
        nodes = {
            name: NodeState(name=name, group=member.group, view=member.view, agent=member.agent(now))
            for name, member in self.roster.items()
        }
        return Views(nodes=nodes, held=self.steps.held(now))

    def _decide(self, views: Views) -> Decision:
        return decide(self._state(views, self.config))

    def _state(self, views: Views, config: PoolConfig) -> State:
        slurm, totals = self.books.nodes, self.books.totals
        same = self.decision is not None and config is self.config
        return State(
            config=config,
            serving=self.offered.serving if self.offered else Serving(),
            nodes={
                name: replace(view, slurm=slurm.get(name), total=totals.get(name, 0))
                for name, view in views.nodes.items()
            },
            jobs=self.books.jobs,
            present=self._present,
            assigned=self.decision.assigned if self.decision and same else {},
            held_gpus=views.held,
            now=self._clock(),
        )

    async def _follow_geometry(self) -> None:
        """Make the classes and the catalogue anew when GPUs or nodes are others than before."""
        facts = {name: (self.roster[name].geometry, node) for name, node in self.books.nodes.items()}
        key = (self.config, {name: (gpus, node.cpus, node.memory_mib) for name, (gpus, node) in facts.items()})
        if key != self._offered_for:
            self._offered_for = key
            made = offered(self.config, facts, self._operators)
            if made is not None:
                self.offered, self._text = made, catalogue.render(made.catalogue)
        if self.config.mode is Mode.MANAGE and self._text != self._written:
            text, where = self._text, self.config.controller.catalogue
            if await self._written_to("catalogue", where, lambda: self._keep.catalogue(text)):
                self._written = text
                log.info("catalogue.written", extra={"nodes": len(facts)})

    async def _written_to(self, what: str, where: object, write: Callable[[], Awaitable[None]]) -> bool:
        try:
            await write()
        except OSError as error:
            self.problems[what] = f"can't write {where}: {error.strerror}"
            return False
        self.problems.pop(what, None)
        return True

    # -- carrying out

    def _tell_offers(self, decision: Decision) -> bool:
        """Send every agent what changed for it. True when somebody was told something."""
        serving = self.offered.serving if self.offered else Serving()
        told = False
        for name, offers in decision.offers.items():
            member = self.roster.get(name)
            if member is not None and member.outbox is not None and self._told.get(name) != (offers, serving):
                self._told[name] = (offers, serving)
                gpus = [gpu.uuid for gpu in member.gpus or () if member.group.takes(gpu.index)]
                member.say(pb.ToAgent(offers=wire.offers_message(offers, serving, gpus)))
                told = True
        self._present = {offer.slice: offer.gres_class for offers in decision.offers.values() for offer in offers}
        return told

    def _send_steps(self, decision: Decision) -> None:
        for name, steps in decision.steps.items():
            for step in steps:
                number = self.steps.started(name, step.gpu, self._clock())
                log.info("step.sent", extra={"node": name, "gpu": step.gpu, "step": number})
                self.roster[name].say(pb.ToAgent(step=wire.step_message(number, step)))

    def _answer(self, fences: Iterable[tuple[Member, int]]) -> None:
        for member, job_id in fences:
            member.say(pb.ToAgent(verdict=pb.Verdict(job_id=job_id)))
