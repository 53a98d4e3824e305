"""The `planning:` section of pool.yaml: its shape, and the short texts in it."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slurm_plugin.errors import ConfigError
from slurm_plugin.nearest import nearest
from slurm_plugin.planning import DAY_MINUTES, Follow, Guarantee, Order, Planning, QuietHours, Reach
from slurm_plugin.slurm.hostlist import expand

MAX_GUARANTEES = 100  # in all
MAX_REACHES = 100  # classes of planning.classes
MAX_QUIET = 50
MAX_COUNT = 1_000_000  # slices of one guarantee
MAX_HOSTS = 20_000  # of one class
MAX_NAMED = 100_000  # hosts that all classes name: any user may have any file planned, and a host list is a short text
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
FORMS = "`account NAME: at least N of CLASS`, `class CLASS: never fewer than N idle` or `class CLASS: at least N`"

_SUBJECT = re.compile(r"(\S+) +(\S+)")
_OF_ACCOUNT = re.compile(r"at least ([0-9]{1,7}) of (\S+)")
_IDLE = re.compile(r"(?:never fewer than|at least) ([0-9]{1,7}) idle")
_IN_ALL = re.compile(r"at least ([0-9]{1,7})")
_QUIET = re.compile(r"(?:(\S+) +)?(\d{1,2}):(\d\d) *- *(\d{1,2}):(\d\d)")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")

T = TypeVar("T")


def guarantee(subject: str, promise: str) -> Guarantee:
    """`account physics` and `at least 4 of 3g.40gb`. Raises ValueError."""
    kind, name = match.groups() if (match := _SUBJECT.fullmatch(subject.strip())) else ("", "")
    if kind not in ("account", "class"):
        near = nearest(kind, ("account", "class"))
        meant = f"; did you mean '{near} {name}'?" if near else ""
        raise ValueError(f"'{subject[:64]}' is neither `account NAME` nor `class CLASS`{meant}")
    text = " ".join(promise.split())
    if kind == "account":
        if not _ACCOUNT.fullmatch(name):
            raise ValueError(f"'{name[:64]}' is no name of an account")
        if found := _OF_ACCOUNT.fullmatch(text):
            return Guarantee(account=name, gres_class=found[2], count=_count(found[1]))
    elif found := _IDLE.fullmatch(text):
        return Guarantee(gres_class=name, count=_count(found[1]), idle=True)
    elif found := _IN_ALL.fullmatch(text):
        return Guarantee(gres_class=name, count=_count(found[1]))
    raise ValueError(f"'{text[:64]}' is not understood: write {FORMS}")


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"{count} is not between 1 and {MAX_COUNT}")
    return count


def quiet_hours(text: str) -> QuietHours:
    """`08:00-18:00`, `mon-fri 22:00-06:00`, `sat,sun 0:00-24:00`: local times. Raises ValueError."""
    match = _QUIET.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text[:64]}' is not `[DAYS] HH:MM-HH:MM`, such as mon-fri 08:00-18:00")
    days, *clock = match.groups()
    begin, end = _minute(*clock[:2]), _minute(*clock[2:])
    if begin == DAY_MINUTES:
        raise ValueError("nothing begins at 24:00; write 00:00")
    if begin == end:
        raise ValueError(f"{text.strip()} begins and ends at once; a whole day is 00:00-24:00")
    return QuietHours(days=frozenset(_days(days)) if days else frozenset(range(len(DAYS))), begin=begin, end=end)


def _minute(hours: str, minutes: str) -> int:
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or minute > DAY_MINUTES:
        raise ValueError(f"{hours}:{minutes} is no time of day")
    return minute


def _days(text: str) -> Iterator[int]:
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        begin, end = _day(first), _day(last) if dash else _day(first)
        yield from ((begin + nth) % len(DAYS) for nth in range((end - begin) % len(DAYS) + 1))


def _day(text: str) -> int:
    if text not in DAYS:
        near = nearest(text, DAYS)
        raise ValueError(f"'{text[:32]}' is no day{f'; did you mean {near}?' if near else ''} ({', '.join(DAYS)})")
    return DAYS.index(text)


def _hosts(text: str) -> tuple[str, ...]:
    try:
        hosts = expand(text, limit=MAX_HOSTS)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if not hosts:
        raise ValueError("no host is named; write a host list such as n[1-4]")
    return hosts


def _bounded(classes: Any) -> Any:
    """`planning.classes`, before it is read: what is wrong in it is told then."""
    if not isinstance(classes, dict):
        return classes
    if len(classes) > MAX_REACHES:
        raise ValueError(f"more than {MAX_REACHES} classes")
    left = MAX_NAMED
    for section in classes.values():
        hosts = section.get("nodes") if isinstance(section, dict) else None
        if isinstance(hosts, str):
            with suppress(ConfigError):
                left -= len(expand(hosts, limit=MAX_HOSTS))
    if left < 0:
        raise ValueError(f"they name more than {MAX_NAMED} hosts in all")
    return classes


def _read(read: Callable[[str], T], value: Any) -> T:
    if not isinstance(value, str):
        raise ValueError("must be a text: put it in quotes")  # noqa: TRY004 - pydantic takes only ValueError
    return read(value)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Promises = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Seconds = Annotated[float, Field(strict=False, ge=0, le=86_400, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChangingSection(_Section):
    node: Annotated[int, Field(ge=1, le=64)] = Planning().changing_of_node
    pool: Annotated[int, Field(ge=1, le=100_000)] = Planning().changing_of_pool


class ReachSection(_Section):
    products: list[str] = []
    nodes: Annotated[tuple[str, ...], BeforeValidator(partial(_read, _hosts))] = ()


class PlanningSection(_Section):
    follow: Literal["layout", "queue"] = "layout"
    order: Literal["priority", "first_come"] = "priority"
    batch_window_s: Seconds = Planning().batch_window_s
    hysteresis_s: Seconds = Planning().hysteresis_s
    changing: ChangingSection = ChangingSection()
    guarantees: Annotated[dict[str, Promises], Field(max_length=MAX_GUARANTEES)] = {}
    quiet: Annotated[
        list[Annotated[QuietHours, BeforeValidator(partial(_read, quiet_hours))]], Field(max_length=MAX_QUIET)
    ] = []
    reset_gpus: bool = False
    classes: Annotated[dict[str, ReachSection], BeforeValidator(_bounded)] = {}

    def to_planning(self, guarantees: Iterable[Guarantee]) -> Planning:
        """`guarantees`: those of this section, understood."""
        return Planning(
            follow=Follow(self.follow),
            order=Order(self.order),
            batch_window_s=self.batch_window_s,
            hysteresis_s=self.hysteresis_s,
            changing_of_node=self.changing.node,
            changing_of_pool=self.changing.pool,
            guarantees=tuple(guarantees),
            quiet=tuple(self.quiet),
            reset_gpus=self.reset_gpus,
            reaches={
                name: Reach(products=tuple(part.products), hosts=frozenset(part.nodes))
                for name, part in self.classes.items()
            },
        )
