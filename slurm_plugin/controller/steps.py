"""Steps under way and steps that failed: which GPUs must be left alone for now."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

STEP_S = 120.0  # a step without an answer for so long is given up; the inventory then says what became of it
FIRST_PAUSE_S = 2.0  # after a failure
LONGEST_PAUSE_S = 60.0


@dataclass(slots=True)
class _Gpu:
    node: str
    step: int = 0  # id of the one under way; 0: none
    until: float = 0.0  # monotonic, as every `now` here
    failures: int = 0
    error: str = ""


@dataclass(slots=True)
class Steps:
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _last: int = 0

    def held(self, now: float) -> frozenset[str]:
        """GPUs with a step under way, or one that failed not long ago."""
        return frozenset(uuid for uuid, gpu in self._gpus.items() if gpu.until > now)

    def failed(self, now: float) -> frozenset[str]:
        """... of these, those where it failed."""
        return frozenset(uuid for uuid, gpu in self._gpus.items() if gpu.until > now and not gpu.step)

    def started(self, node: str, gpu: str, now: float) -> int:
        """The id for a new step."""
        self._last += 1
        record = self._gpus.setdefault(gpu, _Gpu(node))
        record.step, record.until = self._last, now + STEP_S
        return self._last

    def ended(self, step: int, error: str, now: float) -> None:
        uuid = next((uuid for uuid, gpu in self._gpus.items() if gpu.step == step), None)
        if uuid is None:
            return
        if not error:
            del self._gpus[uuid]
            return
        gpu = self._gpus[uuid]
        gpu.step, gpu.error = 0, error
        gpu.until = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**gpu.failures)
        gpu.failures += 1
        log.warning("step.failed", extra={"node": gpu.node, "gpu": uuid, "error": error, "failures": gpu.failures})

    def let_go(self, now: float) -> None:
        """GPUs where a step failed may be tried again from now on."""
        for gpu in self._gpus.values():
            gpu.until = gpu.until if gpu.step else now

    def settled(self, gpus: Iterable[str], now: float) -> None:
        """These are as they are wanted, by whatever made them so: what failed there is nobody's to put right."""
        for gpu in (self._gpus[uuid] for uuid in gpus if uuid in self._gpus):
            gpu.error = gpu.error if gpu.until > now else ""

    def forget(self, node: str) -> None:
        """The node's agent is gone, and with it every answer."""
        for uuid in [uuid for uuid, gpu in self._gpus.items() if gpu.node == node]:
            del self._gpus[uuid]

    def problems(self, node: str) -> Iterable[str]:
        """What failed last on this node's GPUs and was not done since."""
        return (f"GPU {uuid}: change failed: {g.error}" for uuid, g in self._gpus.items() if g.node == node and g.error)
