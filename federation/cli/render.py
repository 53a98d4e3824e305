"""Answers of the daemon as documents and as lines for people."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from federation.desk.view import (
    BudgetView,
    FedJobView,
    PeerList,
    PeerView,
    PoolList,
    PoolView,
    ReasonView,
    StrangerView,
    TransferView,
)
from slurm_plugin.cli.output import say

_MEMORY = re.compile(r"m(\d+)")
_DERIVED = re.compile(r"q\d+|\d+g\..*")  # shares and profiles: the same slices once more


def job_view(told: dict[str, Any]) -> FedJobView:
    """What a newer daemon adds is left out."""
    known = {name: told[name] for name in FedJobView.__dataclass_fields__}
    known["reasons"] = tuple(ReasonView(**one) for one in told["reasons"])
    known["transfer"] = TransferView(**told["transfer"]) if told["transfer"] else None
    return FedJobView(**known)


def peer_list(told: dict[str, Any]) -> PeerList:
    peers = tuple(PeerView(**one) for one in told["peers"])
    away = tuple(StrangerView(**one) for one in told["turned_away"])
    trouble = told.get("trouble", "")
    return PeerList(site=told["site"], draining=told["draining"], trouble=trouble, peers=peers, turned_away=away)


def pool_list(told: dict[str, Any]) -> PoolList:
    pools = tuple(PoolView(**one) for one in told["pools"])
    return PoolList(pools=pools, budgets=tuple(BudgetView(**one) for one in told["budgets"]))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as they need to be; the last one as it is."""
    cells = [[printable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[nth]) for row in cells) for nth in range(len(head))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def job_lines(jobs: Iterable[FedJobView]) -> Iterator[str]:
    head = ("JOB", "SLURM", "STATE", "NAME", "USER", "WHERE", "TIME", "WHY")
    rows = ((label(j), j.slurm_job or "-", state(j), j.name, j.user, where(j), age(j), j.why) for j in jobs)
    yield from table(head, rows)


def show_lines(job: FedJobView) -> Iterator[str]:
    rows = [
        ("job", label(job)),
        ("token", job.job if job.array else ""),
        ("slurm job", job.slurm_job),
        ("name", job.name),
        ("user", job.user),
        ("account", job.account),
        ("state", state(job)),
        ("where", where(job)),
        ("attempt", job.attempt),
        ("accepted", clock(job.accepted_at)),
        ("started", clock(job.started_at)),
        ("ended", clock(job.ended_at)),
        ("price", _cost(job) if job.cost else ""),
        ("output", f"{job.stdout_size} bytes, errors {job.stderr_size} bytes" if job.end else ""),
        ("moving", _transfer(job.transfer)),
        ("why", job.why),
    ]
    for name, value in rows:
        if value not in ("", None):
            yield f"{name + ':':<10} {printable(str(value))}"


def explain_lines(job: FedJobView) -> Iterator[str]:
    yield f"job {label(job)} is {state(job)}" + (f": {printable(job.why)}" if job.why else "")
    if job.cost:
        yield f"price: {_cost(job)}, of account {printable(job.account) or '(none)'}"
    yield from reason_lines(job.reasons)


def reason_lines(reasons: Iterable[ReasonView]) -> Iterator[str]:
    for reason in reasons:
        yield f"  {printable(reason.pool)}: {printable(reason.reason)}"


def peer_lines(found: PeerList) -> Iterator[str]:
    rows = (
        (
            p.site,
            p.address or "dials us",
            "linked" if p.linked else "no link",
            f"{p.silent_s:.0f} s",
            p.pools,
            p.jobs,
            p.why,
        )
        for p in found.peers
    )
    yield from table(("SITE", "ADDRESS", "LINK", "SILENT", "POOLS", "JOBS", "WHY NOT"), rows)


def pool_lines(found: PoolList) -> Iterator[str]:
    rows = (
        (
            p.pool,
            "linked" if p.linked else "no link",
            p.free_jobs,
            p.free_cpus,
            slices(p) or "-",
            f"{p.longest_s} s" if p.longest_s else "any",
            price(p) or "-",
            p.why,
        )
        for p in found.pools
    )
    yield from table(("POOL", "LINK", "FREE", "CPUS", "SLICES", "LONGEST", "PRICE", "WHY NOT"), rows)
    if found.budgets:
        yield ""
        spent = ((one.account or "(none)", f"{one.per_day:.2f}", f"{one.spent:.2f}") for one in found.budgets)
        yield from table(("ACCOUNT", "BUDGET A DAY", "SPENT TODAY"), spent)


def slices(pool: PoolView) -> str:
    """Free ones by amount of memory, as users ask for them; classes of an admin's own as they are named."""
    amounts = {_MEMORY.sub(r"\1gb", name): count for name, count in pool.slices.items() if not _DERIVED.fullmatch(name)}
    return ",".join(f"{name}:{count}" for name, count in sorted(amounts.items(), key=lambda one: (-one[1], one[0])))


def price(pool: PoolView) -> str:
    gpus = f"{pool.gpu_price_per_hour:g}/GPU h" if pool.gpu_price_per_hour else ""
    return " ".join(filter(None, (f"{pool.price_per_hour:g}/h" if pool.price_per_hour else "", gpus)))


def label(job: FedJobView) -> str:
    """What a job is called: its token, or its array and its number there."""
    return f"{job.array}_{job.task}" if job.array else job.job


def state(job: FedJobView) -> str:
    if not job.end:
        return job.state
    how = job.end
    if how == "exited":
        how = f"{how} {job.exit_code}"
    elif how == "signaled":
        how = f"{how} {job.signal}"
    return how if job.state == "done" else f"{job.state} ({how})"


def where(job: FedJobView) -> str:
    return f"{job.site}/{job.pool}" if job.site else "-"


def age(job: FedJobView) -> str:
    begin = job.started_at or job.accepted_at
    return f"{max(0, (job.ended_at or time.time()) - begin):.0f}s"


def clock(at: float | None) -> str:
    try:
        return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # another site's clock may say anything
        return f"{at:g}"


def say_others(count: int, what: str) -> None:
    """To an admin, who is shown his own where he does not ask for all."""
    if count:
        say(f"{count} {what}{'' if count == 1 else 's'} of other users: --all-users")


def printable(text: str) -> str:
    """No control character and no broken text reaches a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _cost(job: FedJobView) -> str:
    return f"{job.cost:.2f} {'spent' if job.end else 'reserved'}"


def _transfer(transfer: TransferView | None) -> str:
    if transfer is None:
        return ""
    of = f" of {transfer.total >> 20}" if transfer.total else ""
    return f"{transfer.what}, {transfer.moved >> 20}{of} MiB" + (f"; stopped: {transfer.why}" if transfer.why else "")
