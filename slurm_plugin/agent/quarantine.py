"""PURE: GPUs that are left alone because what is asked of them keeps failing. Times are seconds of any steady clock."""

from dataclasses import dataclass

from slurm_plugin.errors import NvmlError

FAILURES_MAX = 5  # steps in a row that may fail on a GPU before it is left alone
FIRST_RETRY_S = 60.0  # then it is tried again, seldomer and seldomer
LONGEST_RETRY_S = 900.0


@dataclass(slots=True)
class _Trouble:
    failures: int = 0  # in a row
    why: str = ""  # empty: not in quarantine
    retries: int = 0
    due_at: float = 0.0


class Quarantine:
    def __init__(self) -> None:
        self._gpus: dict[str, _Trouble] = {}

    def failed(self, gpu: str, error: NvmlError, now: float) -> bool:
        """One more step failed. True when the GPU is in quarantine from now on."""
        trouble = self._gpus.setdefault(gpu, _Trouble())
        trouble.failures += 1
        if trouble.failures >= FAILURES_MAX:
            self.put(gpu, error, now)
        return bool(trouble.why)

    def put(self, gpu: str, error: NvmlError, now: float) -> None:
        trouble = self._gpus.setdefault(gpu, _Trouble())
        trouble.why = f"quarantined: {error}" + (f" ({error.hint})" if error.hint else "")
        trouble.due_at = now + min(LONGEST_RETRY_S, FIRST_RETRY_S * 2**trouble.retries)
        trouble.retries += 1

    def well(self, gpu: str) -> None:
        """A step was made: whatever was wrong is over."""
        self._gpus.pop(gpu, None)

    def release(self, gpu: str) -> None:
        """Out, on probation: the next failure puts it back."""
        if gpu in self._gpus:
            self._gpus[gpu] = _Trouble(failures=FAILURES_MAX - 1)

    def why(self, gpu: str) -> str:
        return self._gpus[gpu].why if gpu in self._gpus else ""

    def waits(self, gpu: str, now: float) -> bool:
        """In quarantine, and not to be tried again yet."""
        trouble = self._gpus.get(gpu)
        return trouble is not None and bool(trouble.why) and trouble.due_at > now
