"""What an origin owes a target until it is confirmed. Each is durable, and said again and again.

The signals of one attempt are said one by one: the next once the one before is confirmed.
"""

from dataclasses import replace

from federation.engine.attempts import retry_s
from federation.engine.effects import Effect, Send
from federation.model.job import Job
from federation.model.messages import STATES, STOP, TSTP, Cancel, FromOrigin, Release, Signal
from federation.model.token import Key
from federation.ports import Now
from federation.store.store import Command, Kind, Store

MOST_SIGNALS = 64  # of one attempt, that wait for each other; more are refused


def owe(store: Store, job: Job, kind: Kind, now: Now, *, number: int = 0, value: int = 0) -> Effect:
    """Write down what this job's target is to do, and say it a first time."""
    command = Command(
        key=job.key,
        kind=kind,
        site=job.site,
        pool=job.pool,
        number=number,
        value=value,
        due_at=now.wall + retry_s(1),
        tries=1,
    )
    store.save_command(command)
    return Send(site=job.site, message=message_of(command))


def next_signal(store: Store, key: Key, now: Now) -> list[Effect]:
    """One was confirmed: what waited for it is said."""
    waiting = signals_of(store, key)[:1]
    for command in waiting:
        store.save_command(replace(command, due_at=now.wall + retry_s(1), tries=1))
    return [Send(site=command.site, message=message_of(command)) for command in waiting]


def signals_of(store: Store, key: Key) -> list[Command]:
    """Those that are not confirmed, in their order."""
    found = (command for command in store.commands_of(key) if command.kind is Kind.SIGNAL)
    return sorted(found, key=lambda command: command.number)


def waits(store: Store, command: Command) -> bool:
    """For an earlier signal."""
    return command.kind is Kind.SIGNAL and command.number != signals_of(store, command.key)[0].number


def superseded(store: Store, waiting: list[Command], signal: int) -> list[Command]:
    """Those that still wait once this one of STATES does. Only the TSTP before its STOP means something beside it."""
    kept = [one for one in waiting if one.value not in STATES or (one.value, signal) == (TSTP, STOP)]
    if len(kept) < len(waiting):
        store.drop_command(waiting[-1].key, Kind.SIGNAL, waiting[-1].number)
        for command in kept:
            store.save_command(command)
    return kept


def message_of(command: Command) -> FromOrigin:
    match command.kind:
        case Kind.CANCEL:
            return Cancel(key=command.key, pool=command.pool)
        case Kind.RELEASE:
            return Release(key=command.key)
        case Kind.SIGNAL:
            return Signal(key=command.key, number=command.number, signal=command.value)
