"""The nodes of the pool and the agents that speak for them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_plugin.controller.numbers import all_there, as_numbered_now
from slurm_plugin.controller.offered import Geometry, geometry
from slurm_plugin.controller.state import Agent, NodeView
from slurm_plugin.controller.twins import Twins, Who
from slurm_plugin.errors import ConfigError, LinkError, VgpuError
from slurm_plugin.link.server import Send
from slurm_plugin.model import Gpu
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.wire import gpus_from_wire, grants_from_wire

log = logging.getLogger(__name__)

GRACE_S = 30.0  # an agent that is gone may be back: so long nothing of its node changes
FIRST_WORD_S = 10.0  # a session whose inventory does not come in time is ended
OUTBOX = 512  # messages waiting for one agent; an agent that reads so slowly is thrown out


@dataclass(slots=True, kw_only=True)
class Member:
    """One node, and its agent's session while there is one."""

    name: str
    group: NodeGroup  # as pool.yaml has it
    tick: Callable[[], float]
    lost_at: float  # monotonic
    inventory: pb.Inventory | None = None
    spoke: bool = False  # its agent has told of it since we started; before, the inventory is from disk
    gpus: tuple[Gpu, ...] | None = None
    numbered: tuple[Gpu, ...] = ()  # the GPUs when all were last there: see numbers
    pool_gpus: tuple[str, ...] = ()  # UUIDs of the pool's; not of one that could never be read
    other_gpus: tuple[str, ...] = ()  # UUIDs of those that are known not to be the pool's
    view: NodeView = field(default_factory=NodeView)
    geometry: Geometry = ()
    clock_ahead_s: float = 0.0  # the node's clock against ours, when its agent last spoke
    twins: Twins = field(default_factory=Twins)
    # Each session's own: what was said and decided in another one is not for it. None while no agent is there.
    outbox: "asyncio.Queue[pb.ToAgent | None] | None" = None
    entry: NodeGroup = field(init=False)  # `group` with the numbers that its GPUs have now

    def __post_init__(self) -> None:
        self.entry = self.group

    @property
    def is_whole(self) -> bool:
        """All its GPUs are there, or none was ever seen."""
        return self.gpus is None or self.gpus is self.numbered

    @property
    def fault(self) -> str:
        return self.inventory.fault if self.inventory is not None else ""

    def agent(self, now: float) -> Agent:
        if self.outbox is not None:
            return Agent.CONNECTED
        return Agent.EXPECTED if now - self.lost_at < GRACE_S else Agent.AWAY

    def heard(self, inventory: pb.Inventory, now: float) -> bool:
        """Take what its agent has just said; see `take`. Only `now`, Unix seconds, its clock can be compared."""
        changed = self.take(inventory)
        self.spoke = True
        self.clock_ahead_s = inventory.clock - now if inventory.clock else 0.0
        return changed

    def take(self, inventory: pb.Inventory) -> bool:
        """Take a new inventory. True when the GPUs themselves, not only their slices, are others than before.

        Raises LinkError when it is not understood.
        """
        before = (self.geometry, self.pool_gpus, self.other_gpus)
        try:
            self.gpus = gpus_from_wire(inventory)
        except ValueError as error:
            raise LinkError(f"the inventory of {self.name} is not understood: {error}") from None
        self.inventory = inventory
        self.look()
        return (self.geometry, self.pool_gpus, self.other_gpus) != before

    def here(self, group: NodeGroup) -> NodeGroup:
        """The entry of a pool.yaml for this node, with the numbers that its GPUs have now."""
        if self.gpus is None or all_there(group, self.gpus, self.numbered):
            return group
        return as_numbered_now(group, self.gpus, self.numbered)

    def look(self) -> None:
        if self.gpus is not None and all_there(self.group, self.gpus, self.numbered):
            self.numbered = self.gpus
        self.entry = self.here(self.group)
        known = {gpu.uuid for gpu in self.numbered}
        told = [(gpu.uuid, self.entry.takes(gpu.index)) for gpu in self.gpus or () if gpu.uuid]
        self.pool_gpus = tuple(uuid for uuid, ours in told if ours)
        self.other_gpus = tuple(uuid for uuid, ours in told if not ours and uuid in known)
        self.geometry = geometry(self.gpus, self.entry)
        if self.inventory is not None and self.gpus is not None:
            waiting = (prolog.job_id for prolog in self.inventory.waiting)
            grants, garbled = grants_from_wire(self.inventory), self.inventory.garbled
            self.view = NodeView.of(self.gpus, grants, self.entry, waiting, garbled)

    def say(self, message: pb.ToAgent) -> None:
        """Queue a message for the agent; one that does not read is thrown out, and comes back with a new session."""
        if self.outbox is None:
            return
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("agent.too_slow", extra={"node": self.name, "bound": OUTBOX})
            self.hang_up()

    def hang_up(self) -> None:
        """End the session there is, if there is one."""
        outbox, self.outbox = self.outbox, None
        if outbox is not None:
            self.lost_at = self.tick()
            while not outbox.empty():
                outbox.get_nowait()
            outbox.put_nowait(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """An agent's first word."""

    member: Member
    inventory: pb.Inventory
    peer: str


class Roster(Mapping[str, Member]):
    """Every node of pool.yaml by name."""

    def __init__(
        self,
        config: PoolConfig,
        known: Mapping[str, pb.Inventory],
        clock: Callable[[], float],
        tick: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._tick = tick
        self._members: dict[str, Member] = {}
        self.follow(config)
        for name, inventory in known.items():
            with contextlib.suppress(LinkError):
                self._members[name].take(inventory)

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def follow(self, config: PoolConfig) -> None:
        """Nodes that pool.yaml no longer has leave, and their agents are told to go."""
        groups = {host: group for group in config.groups for host in group.hosts}
        for name in self._members.keys() - groups.keys():
            self._members.pop(name).hang_up()
        for name, group in groups.items():
            member = self._members.get(name)
            if member is None:
                member = Member(name=name, group=group, tick=self._tick, lost_at=self._tick())
                self._members[name] = member
            member.group = group
            member.look()

    async def welcome(self, received: AsyncIterator[pb.FromAgent], peer: str) -> Hello:
        """Wait for an agent's first word, its inventory. Raises LinkError, ConfigError (a node that is not ours)."""
        try:
            async with asyncio.timeout(FIRST_WORD_S):
                first = await anext(received)
        except (TimeoutError, StopAsyncIteration):
            raise LinkError("the agent sent no inventory") from None
        name = first.inventory.node
        if name not in self._members:
            raise _not_ours(name)
        return Hello(member=self._members[name], inventory=first.inventory, peer=peer)

    async def serve(self, hello: Hello, send: Send, listen: Callable[[], "asyncio.Task[None]"]) -> None:
        """Carry the outbox until the agent goes or is thrown out. `listen` starts the reading half.

        Raises ConfigError when the node has left the pool meanwhile, LinkError for GPUs that are not understood.
        """
        member = hello.member
        if self._members.get(member.name) is not member:
            raise _not_ours(member.name)
        member.hang_up()  # an older session of the same node: its agent died without a word
        member.heard(hello.inventory, self._clock())
        member.twins.came(Who(peer=hello.peer, started_at=hello.inventory.started_at), self._tick())
        outbox: asyncio.Queue[pb.ToAgent | None] = asyncio.Queue(OUTBOX)
        member.outbox = outbox
        reading = listen()
        writing = asyncio.create_task(_carry(outbox, send))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
            if member.outbox is outbox:
                member.hang_up()
        for end in ends:
            if isinstance(end, VgpuError):
                raise end
            if isinstance(end, Exception):
                log.error("agent.session_broke", extra={"node": member.name}, exc_info=end)


def _not_ours(name: str) -> ConfigError:
    return ConfigError(f"node {name[:64]!r} is not in pool.yaml", hint="add it under nodes: and `vgpu apply`")


async def _carry(outbox: "asyncio.Queue[pb.ToAgent | None]", send: Send) -> None:
    while (message := await outbox.get()) is not None:
        await send(message)
