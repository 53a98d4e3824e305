"""PURE: what an admin says of how layouts follow the queue, and what of it holds at a moment.

Times of day are the controller's local ones: a weekday (0 is Monday) and a minute of that day. Who asks has the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DAY_MINUTES = 24 * 60
WEEK_DAYS = 7
_WEEK_MINUTES = WEEK_DAYS * DAY_MINUTES


class Follow(StrEnum):
    LAYOUT = "layout"  # GPUs are what `layout` and `mix` of their entry say
    QUEUE = "queue"  # idle capacity is re-cut for what waits


class Order(StrEnum):
    PRIORITY = "priority"  # Slurm's
    FIRST_COME = "first_come"  # by the time of submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """At least `count` slices that serve a class: idle ones, or idle ones and those in use by `account` or anybody."""

    gres_class: str  # as the admin wrote it: any class a request may name
    count: int
    account: str = ""  # empty: anybody's
    idle: bool = False  # only idle ones count

    @property
    def subject(self) -> str:
        """Its key in pool.yaml."""
        return f"account {self.account}" if self.account else f"class {self.gres_class}"

    @property
    def text(self) -> str:
        """As it stands in pool.yaml."""
        if self.idle:
            return f"{self.subject}: never fewer than {self.count} idle"
        return f"{self.subject}: at least {self.count}" + (f" of {self.gres_class}" if self.account else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """From `begin` on each of `days` until `end`, which lies on the next day when it is not after `begin`."""

    days: frozenset[int] = frozenset(range(WEEK_DAYS))
    begin: int  # minutes after midnight, below DAY_MINUTES
    end: int  # likewise, or DAY_MINUTES

    @property
    def minutes(self) -> int:
        return self.end - self.begin if self.end > self.begin else self.end + DAY_MINUTES - self.begin

    def left(self, weekday: int, minute: int) -> int:
        """Minutes until they end; 0 when they are not now."""
        now = weekday * DAY_MINUTES + minute
        since = ((now - day * DAY_MINUTES - self.begin) % _WEEK_MINUTES for day in self.days)
        return max((self.minutes - gone for gone in since if gone < self.minutes), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where slices of a class may be cut."""

    products: tuple[str, ...] = ()  # empty: on every model
    hosts: frozenset[str] = frozenset()  # empty: on every node


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    follow: Follow = Follow.LAYOUT
    order: Order = Order.PRIORITY
    batch_window_s: float = 1.0  # from the first request that needs a re-cut to the plan, so that others come along
    hysteresis_s: float = 60.0  # a GPU that was re-cut stays so for so long, unless a guarantee needs it
    changing_of_node: int = 2  # GPUs that change at once
    changing_of_pool: int = 32
    guarantees: tuple[Guarantee, ...] = ()
    quiet: tuple[QuietHours, ...] = ()  # no GPU is re-cut then, unless a guarantee needs it
    reset_gpus: bool = False  # may an idle GPU be reset to bring it into MIG mode
    reaches: Mapping[str, Reach] = field(default_factory=dict)  # class as the admin wrote it -> where; others anywhere

    def quiet_left(self, weekday: int, minute: int) -> int:
        """Minutes until no quiet hours are; 0 when none are now, a week when they never end."""
        left = 0
        while left < _WEEK_MINUTES:
            days, at = divmod(weekday * DAY_MINUTES + minute + left, DAY_MINUTES)
            more = max((hours.left(days % WEEK_DAYS, at) for hours in self.quiet), default=0)
            if not more:
                break
            left += more
        return min(left, _WEEK_MINUTES)
