"""Looking at a live pool all the while that something happens to it."""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from slurm_plugin.cli import client
from slurm_plugin.cli.target import Target
from slurm_plugin.cli.view import NodeView, PoolView, SliceState
from slurm_plugin.errors import VgpuError
from tests.e2e.live import Live

LOOK_EVERY_S = 1.0
# Slurm's reason when slurmctld has forgotten that it started a job, and starts it again where it still runs.
TWICE = "Duplicate jobid"
# From 23.11 on also when a slurmd that was killed has forgotten that it ran a prolog; of one that fails, too.
PROLOG = "Prolog error"


@dataclass(slots=True)
class Watch:
    """Looks all the while. What it sees of a Slurm or a controller that is away is nothing."""

    live: Live
    over: threading.Event = field(default_factory=threading.Event)
    states: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (node, state, reason)
    longest_s: float = 0.0  # that a node stayed drained for what Slurm's daemons forgot
    _since: dict[str, float] = field(default_factory=dict)
    looks: int = 0  # at the counts, undisturbed
    too_many: list[str] = field(default_factory=list)
    _before: frozenset[str] = frozenset()

    def run(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            self._nodes()
            self._counts()

    def _nodes(self) -> None:
        for line in self._ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N|%T|%E").splitlines():
            node, state, reason = line.split("|", 2)
            self.states[node, state, reason] += 1
            if "drain" in state and reason in (TWICE, PROLOG):
                since = self._since.setdefault(node, time.monotonic())
                self.longest_s = max(self.longest_s, time.monotonic() - since)
            else:
                self._since.pop(node, None)

    def drained(self) -> list[str]:
        """Every drain but those that Slurm makes itself of what its daemons forgot: the controller ends them."""
        drains = (one for one in self.states.items() if "drain" in one[0][1] and one[0][2] not in (TWICE, PROLOG))
        return [f"{node} {state}: {why} ({n})" for (node, state, why), n in drains]

    @property
    def twice(self) -> int:
        """Looks that saw a node drained so."""
        return sum(n for (_, state, why), n in self.states.items() if "drain" in state and why in (TWICE, PROLOG))

    def _counts(self) -> None:
        """A look counts where nothing of a node moved while Slurm was asked; a fault is what two of them in a row see:
        offers are decided a moment before Slurm has the counts.
        """
        before = self._pool()
        jobs = self._ask("squeue", "-h", "-r", "-a", "-t", "R,CF,S", "-o", "%A").split()
        shown = {node: self._shown(node) for node in self.live.lab.nodes}
        after = self._pool()
        if before is None or after is None or before.started_at != after.started_at:
            return
        now: set[str] = set()
        for old, new in zip(before.nodes, after.nodes, strict=True):
            seen = shown[new.name]
            if seen is not None and new.agent_connected and _what_counts(old) == _what_counts(new):
                self.looks += 1
                now |= {f"{new.name} {fault}" for fault in _more_than_there(new, set(map(int, jobs)), *seen)}
        self.too_many += sorted(now & self._before)
        self._before = frozenset(now)

    def _shown(self, node: str) -> tuple[dict[str, int], dict[str, int]] | None:
        try:
            return self.live.published(node), self.live.used(node)
        except AssertionError:
            return None

    def _ask(self, *argv: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                argv, env=self.live.env, capture_output=True, text=True, timeout=30, check=False
            ).stdout
        return ""

    def _pool(self) -> PoolView | None:
        return pool_of(self.live)


def pool_of(live: Live) -> PoolView | None:
    """None while the controller is away."""
    lab = live.lab
    try:
        return client.fetch_pool(
            Target(address=f"127.0.0.1:{lab.ports.controller}", uid=0, munge_socket=lab.munge_socket)
        )
    except (VgpuError, OSError):
        return None


def _what_counts(node: NodeView) -> object:
    return (
        node.agent_connected,
        node.grants,
        [(s.uuid, s.state, s.offered_as) for gpu in node.gpus for s in gpu.slices],
    )


def _more_than_there(
    node: NodeView, running: set[int], published: dict[str, int], used: dict[str, int]
) -> Iterator[str]:
    """Classes of which more can be taken than slices are idle, or of a job that is not running any more."""
    there = Counter(s.offered_as for gpu in node.gpus for s in gpu.slices if s.state is SliceState.IDLE)
    for grant in node.grants:
        if grant.job_id not in running:
            there[grant.gres_class] += len(grant.slices)
    for kind, count in published.items():
        if kind != "pad" and kind and count - used.get(kind, 0) > there[kind]:
            yield f"{kind}: {count} published, {used.get(kind, 0)} used, {there[kind]} there"
