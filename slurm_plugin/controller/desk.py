"""What the controller has in hand: who is there, what Slurm said, what was decided, and what the agents were told.

Two work at it: the pass, which decides about the pool, and the fences, which decide about single nodes meanwhile. What
a fence has decided, a pass whose view is older leaves alone: `overtaken`. Nobody takes a view while a fence is at work:
`apart`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_plugin.controller import wire
from slurm_plugin.controller.books import Books
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.roster import Roster
from slurm_plugin.controller.shopfront import Shopfront
from slurm_plugin.controller.state import Decision, NodeState, OfferOut, Part, Pause, State
from slurm_plugin.controller.steps import Steps
from slurm_plugin.controller.wants import Asked
from slurm_plugin.pool import Mode, PoolConfig
from slurm_plugin.ports import QueuedJob
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """What the agents had told at one moment. GPUs held then stay so for the pass: an answer that comes later says
    nothing about what is seen here."""

    nodes: Mapping[str, NodeState]
    spoke: Mapping[str, object]  # node -> the session in which its agent told this
    held: frozenset[str]
    failed: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Desk:
    config: PoolConfig
    roster: Roster
    books: Books
    shop: Shopfront
    clock: Callable[[], float] = time.time  # Unix seconds: for what is shown, and to compare with Slurm's times
    tick: Callable[[], float] = time.monotonic  # for whatever is waited for
    steps: Steps = field(default_factory=Steps)
    decision: Decision | None = None
    decided_for: PoolConfig | None = None  # what the decision followed
    present: Mapping[str, str] = field(default_factory=dict)  # slice -> class it is offered as
    problems: dict[str, str] = field(default_factory=dict)  # of the pool, by what they are about
    changed: set[str] = field(default_factory=set)  # nodes whose agent said something since the last pass
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # there is something for a pass to look at
    overtaken: set[str] = field(default_factory=set)
    apart: asyncio.Lock = field(default_factory=asyncio.Lock)
    pause: Pause | None = None  # nothing is re-cut
    told: dict[str, object] = field(default_factory=dict)  # node -> what its agent was sent last

    @property
    def has_agents(self) -> bool:
        """Without any this may be a second controller of the pool: what jobs wait for, the other one knows."""
        return any(member.outbox is not None for member in self.roster.values())

    def job_ids(self) -> set[int]:
        """Of the queue as last read."""
        return {job.job_id for job in self.books.jobs}

    def look_at(self, names: Iterable[str]) -> None:
        """A pass is to look at these nodes soon."""
        self.changed.update(names)
        self.wake.set()

    def views(self, names: Iterable[str] | None = None) -> Views:
        """Of these nodes, or of all."""
        now = self.tick()
        nodes = {
            name: NodeState(
                name=name,
                group=member.entry,
                view=member.view,
                agent=member.agent(now),
                spoke=member.spoke,
                fault=f"its agent can bind nothing: {member.fault}" if member.fault else "",
            )
            for name in (self.roster if names is None else names)
            for member in (self.roster[name],)
        }
        spoke = {name: self.roster[name].outbox for name in nodes}
        return Views(nodes=nodes, spoke=spoke, held=self.steps.held(now), failed=self.steps.failed(now))

    def state(
        self,
        views: Views,
        config: PoolConfig,
        *,
        jobs: tuple[QueuedJob, ...] | None = None,
        part: Part | None = None,
    ) -> State:
        books = self.books
        known = self.decided_for is not None and config.groups == self.decided_for.groups
        contested = books.rivals.leave(time.monotonic())
        return State(
            config=config,
            serving=self.shop.serving,
            nodes={
                name: replace(
                    view,
                    slurm=books.nodes.get(name),
                    total=books.total(name),
                    weight=books.weights.get(name, 0),
                    contested=name in contested,
                    gone=books.gone(name),
                )
                for name, view in views.nodes.items()
            },
            jobs=self.books.jobs if jobs is None else jobs,
            asked=self.decision.asked if self.decision else Asked(),
            present=self.present,
            assigned=self.decision.assigned if self.decision and known else {},
            loans=self.decision.loans if self.decision else Loans(),
            held_gpus=views.held,
            failed_gpus=views.failed,
            recuts=self.decision.recuts if self.decision else Recuts(),
            promises=self.shop.promises,
            reaches=self.shop.reaches,
            forgotten=self.decision.forgotten if self.decision else frozenset(),
            paused=self.pause is not None,
            quiet_min=self._quiet_min(config),
            now=self.clock(),
            part=part,
        )

    def _quiet_min(self, config: PoolConfig) -> int:
        local = time.localtime(self.clock())
        return config.planning.quiet_left(local.tm_wday, local.tm_hour * 60 + local.tm_min)

    def tell(self, offers: Mapping[str, tuple[OfferOut, ...]]) -> bool:
        """Send every agent what changed for it. True when somebody was told something.

        While the pool is only observed an agent hears that, and of its slices what they were offered as before.
        """
        observe, serving, told = self.config.mode is Mode.OBSERVE, self.shop.serving, False
        for name, all_ in offers.items():
            node = self._as_before(all_) if observe else all_
            member = self.roster.get(name)
            if member is None or member.outbox is None:
                continue
            terms = (node, serving, observe, gpus := member.pool_gpus, others := member.other_gpus)
            if self.told.get(name) != terms:
                self.told[name] = terms
                leave = {"observe": observe, "reset_gpus": self.config.planning.reset_gpus}
                member.say(pb.ToAgent(offers=wire.offers_message(node, serving, gpus, others=others, **leave)))
                told = True
        if not observe:
            fresh = {offer.slice: offer.gres_class for node in offers.values() for offer in node}
            whole = len(offers) == len(self.roster)
            self.present = fresh if whole else {**self.present, **fresh}
        return told

    def _as_before(self, offers: tuple[OfferOut, ...]) -> tuple[OfferOut, ...]:
        known = (offer for offer in offers if offer.slice in self.present)
        return tuple(OfferOut(slice=offer.slice, gres_class=self.present[offer.slice]) for offer in known)
