"""Slurm's books as the controller keeps them: jobs and nodes as last read, and the counts it writes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.controller import counts
from slurm_plugin.controller.refusals import Refusals
from slurm_plugin.controller.rivals import Rivals
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem, QueuedJob, Slurm, SlurmNode
from slurm_plugin.slurm.gres import format_gres, parse_gres

log = logging.getLogger(__name__)

POLL_S = 2.0  # how often all nodes are read
POLL_SHARE = 10  # ... but it takes at most one part in so many of our time
POLL_MOST_S = 10.0  # ... and is never waited for longer
SILENT_S = 5.0  # without an answer, and what is known of Slurm is told as old
REPAIRS = 3  # times that what was written is read back
UNHEARD = "UNKNOWN"  # the state of a node that has not registered yet
SETTLE_S = 1.5  # while a new slurmctld ends what it forgot on a node that registers, slurmd refuses that job
WRITES_AT_ONCE = 4  # commands that write, side by side

Gres = Mapping[str, tuple[GresItem, ...]]  # node -> whole Gres


@dataclass(slots=True, kw_only=True)
class _Written:
    """What we wrote on a node last."""

    gres: tuple[GresItem, ...]
    done_at: float = float("inf")  # monotonic; a reading that began before then says nothing of it
    seen: bool = False  # Slurm has said so: what it says now is somebody else's


class Books:
    """Every call may raise SlurmError or SlurmUnavailable; what was read before then stays."""

    def __init__(self, slurm: Slurm, names: GresNames) -> None:
        self._slurm = slurm
        self.names = names
        self._due = 0.0  # monotonic
        self._answered = time.monotonic()
        self._writing = asyncio.Lock()  # two that write one node's counts do so one after the other
        self.query_s = 0.0  # how long the last reading of the queue took
        self.as_of = 0.0  # monotonic; when the reading of `jobs` began
        self.jobs: tuple[QueuedJob, ...] = ()
        self.nodes: dict[str, SlurmNode] = {}
        self._unknown: set[str] = set()  # of the pool, and not to Slurm, when all were read last
        self.totals: dict[str, int] = {}  # of our GRES, as last seen
        self.weights: dict[str, int] = {}  # of the memory's GRES, as last seen
        self.rivals = Rivals()
        self.refusals = Refusals()
        self._written: dict[str, _Written] = {}
        self._base_since: dict[str, float] = {}  # nodes whose counts slurmctld has lost, monotonic
        self._taken: set[str] = set()  # nodes that lost our GRES though slurm.conf has it there
        self._had: dict[str, tuple[int, frozenset[str]]] = {}  # start of its slurmd, and every GRES seen since

    @property
    def silent_s(self) -> float:
        """For how long Slurm has not answered; 0 while that is no longer than usual."""
        silent_s = time.monotonic() - self._answered
        return silent_s if silent_s > SILENT_S + 2 * POLL_SHARE * self.query_s else 0.0

    def read_all_next(self) -> None:
        self._due = 0.0

    def settled(self, name: str) -> bool:
        """Not one on which a slurmctld that has just started, or read slurm.conf anew, may be ending jobs it forgot.

        Such a job that it starts anew in that second slurmd refuses for its credential, and Slurm calls it FAILED.
        """
        return time.monotonic() - self._base_since.get(name, 0.0) >= SETTLE_S

    async def read(self, changed: Iterable[str], pool: Iterable[str], partitions: Sequence[str]) -> set[str]:
        """Read the jobs of these partitions, then these nodes, or all of the pool's when it is time.

        Returns the nodes that were read. Jobs first: one that starts in between is then used and not yet seen running,
        which counts allow for.
        """
        began = time.monotonic()
        self.jobs = await self._slurm.vgpu_jobs(partitions)
        self.as_of = began
        self._answered = time.monotonic()
        self.query_s = self._answered - began  # one that failed was long because nobody was there, not by its answer
        pool = set(pool)
        if time.monotonic() >= self._due or self.nodes.keys() | self._unknown != pool:
            return await self._read_all(pool)
        names = set(changed) & self.nodes.keys()
        typed = {name for name in names if not counts.is_base(self.names, self.nodes[name].gres)}
        read = await self._read_some(names)
        if any(counts.is_base(self.names, self.nodes[name].gres) for name in typed & read):
            return await self._read_all(pool)  # one look at all tells whether slurm.conf was read anew
        return read

    async def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """Those of Slurm, read now."""
        return await self._slurm.partitions()

    async def look(self, names: set[str]) -> None:
        """Read these nodes."""
        await self._read_some(names)

    async def verify(
        self, names: set[str], repair: Callable[[], Awaitable[Gres]], leave: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Read back what was written. Should a job have been started on what was taken away, `repair` says anew.

        Returns the nodes where a type is still below its use: never acceptable, so try again at once.
        """
        short: tuple[str, ...] = ()
        for left in reversed(range(REPAIRS)):
            await self._read_some(names)
            short = tuple(name for name in sorted(names) if self._below_use(name))
            if not short:
                break
            log.error("gres.below_use", extra={"nodes": short})
            again = await repair() if left else {}
            names = await self.write({name: again[name] for name in short if name in again}, leave)
        return short

    def _below_use(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and bool(counts.below_use(self.names, node.gres, node.gres_used))

    async def write(self, gres: Gres, leave: Collection[str] = ()) -> set[str]:
        """One command for all nodes that are to have the same. Returns the nodes that may have other counts now.

        Nodes that come into `leave` meanwhile are left alone; so are, for a while, those where Slurm has refused it.
        One refused text does not keep the others back.
        """
        by_text: dict[str, list[str]] = {}
        now = time.monotonic()
        for name, items in gres.items():
            if not self.refusals.rests(name, now):
                by_text.setdefault(format_gres(items), []).append(name)
        texts = list(by_text)
        done: set[str] = set()
        for at in range(0, len(texts), WRITES_AT_ONCE):
            async with self._writing:
                some = {text: [n for n in by_text[text] if n not in leave] for text in texts[at : at + WRITES_AT_ONCE]}
                done.update(*some.values())
                wrote = await asyncio.gather(
                    *(self._set(names, text) for text, names in some.items() if names), return_exceptions=True
                )
            for failed in filter(None, wrote):
                raise failed
        return done

    async def _set(self, names: list[str], text: str) -> None:
        facts = {"nodes": names[:10], "count": len(names), "gres": text}
        written = {name: _Written(gres=parse_gres(text)) for name in names}
        self._written |= written
        try:
            await self._slurm.set_gres(names, text)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            log.error("gres.refused", extra=facts | {"error": str(error)})  # noqa: TRY400
            self.refusals.refused(names, str(error), time.monotonic())
        else:
            log.info("gres.published", extra=facts)
            self.refusals.taken(names)
            for one in written.values():
                one.done_at = time.monotonic()

    async def _read_some(self, names: set[str]) -> set[str]:
        names = names - self._unknown  # Slurm refuses them all for one unknown name
        if not names:
            return set()
        began = time.monotonic()
        return self._take(await self._slurm.nodes(sorted(names)), began)

    async def _read_all(self, pool: set[str]) -> set[str]:
        began = time.monotonic()
        try:
            found = await self._slurm.nodes(sorted(pool) if self.nodes.keys() == pool else ())
        except SlurmUnavailable:
            raise
        except SlurmError:
            self.nodes, self._unknown = {}, set()  # Slurm refuses them all for one unknown name: ask for all next time
            raise
        self.nodes = {}
        self._take((node for node in found if node.name in pool), began)
        self._unknown = pool - self.nodes.keys()
        self._judge()
        self._due = began + min(POLL_MOST_S, max(POLL_S, POLL_SHARE * (time.monotonic() - began)))
        return set(self.nodes)

    def _take(self, found: Iterable[SlurmNode], began: float) -> set[str]:
        read = {node.name: node for node in found}
        for name in read.keys() & self._written.keys():
            self._compare(self._written[name], read[name], began)
            if not counts.is_base(self.names, read[name].gres):
                self._base_since.pop(name, None)
            elif name not in self._base_since or read[name].state.startswith(UNHEARD):
                self._base_since[name] = time.monotonic()
        self.nodes |= read
        self.totals |= {
            name: total
            for name, node in read.items()
            if (total := counts.total_of(self.names, node.gres, self.totals.get(name, 0)))
        }
        self.weights |= {name: n for name, node in read.items() if (n := counts.weight_of(self.names, node.gres))}
        for name, node in read.items():
            started_at, had = self._had.get(name, (node.slurmd_started_at, frozenset()))
            since = had if started_at == node.slurmd_started_at else frozenset()  # another slurm.conf, maybe
            self._had[name] = (node.slurmd_started_at, since | {item.name for item in node.gres})
        return set(read)

    def _judge(self) -> None:
        """Whose doing is it that a node lacks a GRES that it had? All nodes were read at one moment.

        When slurm.conf is read anew every node is at its base, and what one lacks then, that file does not give it any
        more. While others have what we published, somebody has changed this one live.
        """
        ours = {name for name, node in self.nodes.items() if any(i.name == self.names.name for i in node.gres)}
        if any(not counts.is_base(self.names, self.nodes[name].gres) for name in ours):
            self._taken = self.totals.keys() & self.nodes.keys() - ours
        elif ours:
            self._taken = set()
            self.totals = {name: total for name, total in self.totals.items() if name in ours}
            for name, node in self.nodes.items():
                has = frozenset(item.name for item in node.gres)
                self._had[name] = (node.slurmd_started_at, has)
                if self.names.memory not in has:
                    self.weights.pop(name, None)

    def total(self, name: str) -> int:
        """Of our GRES on this node, as it was last seen; 0 for none, and where slurm.conf may have taken it away."""
        node = self.nodes.get(name)
        has = node is not None and any(item.name == self.names.name for item in node.gres)
        return self.totals.get(name, 0) if has or name in self._taken else 0

    def _compare(self, written: _Written, node: SlurmNode, began: float) -> None:
        """Is what we wrote there still so? A restart or reconfigure of Slurm is nobody's change."""
        if began < written.done_at:
            return
        if counts.same(node.gres, written.gres):
            written.seen = True
            return
        del self._written[node.name]
        if written.seen and not counts.is_base(self.names, node.gres):
            log.warning("gres.altered", extra={"node": node.name, "gres": format_gres(node.gres)})
            self.rivals.changed(node.name, time.monotonic())

    def gone(self, name: str) -> frozenset[str]:
        """Every GRES that Slurm had there since slurmd started or slurm.conf was read, and has no more: set by hand."""
        node = self.nodes.get(name)
        return self._had[name][1] - {item.name for item in node.gres} if node else frozenset()
