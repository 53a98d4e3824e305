"""PURE: which waiting jobs may go to the cloud partition, and why the others stay."""

from dataclasses import dataclass
from enum import StrEnum


class Opt(StrEnum):
    OUT = "out"  # every job may go, but those with --burst=never
    IN = "in"  # only those with --burst


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One partition's, from fed.yaml. Empty sets: any."""

    opt: Opt = Opt.OUT
    after_s: int = 600  # waited so long
    start_later_s: int = 0  # expected to start no sooner than so much from now, where anybody can tell
    least_waiting: int = 0  # jobs that wait in the partition
    least_priority: int = 0
    qos: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    most_jobs: int = 1000  # of it that are widened or run there, at once
    spend_per_day: float | None = None  # None: any
    most_input_bytes: int = 1 << 30  # of one job
    recall: bool = True  # one that local room comes for first is taken back
