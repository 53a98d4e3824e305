"""PURE: Slurm's commands as lists of arguments, and what they print as values.

A job is known by its name, which is its key, and by its owner. No text of a user's is printed, and none is in a name.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from federation.executors import layout
from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.model.token import Key

NAMES_A_CALL = 500  # of 35 bytes or more: one argument may have 128 KiB
WARNED_S = 60  # how long before its limit a job is warned that does not say; Slurm's own default
SINCE_SLACK_S = 3600.0  # clocks of the hosts may differ
MAX_DAYS = 24_855  # longer is without limit
MOST_DIGITS = 12  # of a time
_WAITS_FOR_ROOM = ("None", "Resources", "Priority")
_FIELDS = 6
_NOWHERE = frozenset({"", "(null)", "None assigned"})  # nodes of a job that was never given any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job as Slurm tells of it. `job_id` may be another job's by tomorrow."""

    job_id: str
    uid: int
    state: str
    placed: bool = False  # it was given nodes
    started_at: int = 0  # Unix seconds; 0: it never did


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the pool's file says every job of the pool is given. Empty: Slurm's own default."""

    partition: str = ""
    account: str = ""  # of jobs that name none
    qos: str = ""


def submit(key: Key, spec: JobSpec, folder: str, where: Where) -> list[str]:
    """The wrapper counts the limit to the second; Slurm's own is there for what the wrapper can't end."""
    minutes = -(-spec.time_limit_s // 60) + 1
    wanted = {
        "--partition": where.partition,
        "--account": spec.account or where.account,
        "--qos": where.qos,
        "--gres": spec.gres,
        "--mem": f"{spec.memory_mib}M" if spec.memory_mib else "",
        "--time": str(minutes) if spec.time_limit_s else "",
        "--signal": _warning(spec, minutes),
    }
    return [
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--export=ALL",
        f"--job-name={layout.name_of(key)}",
        f"--chdir={folder}/{layout.WORK}",
        f"--output={folder}/backend",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={spec.cpus}",
        *(f"{option}={value}" for option, value in wanted.items() if value),
        *layout.argv(folder, spec.time_limit_s)[1:],
    ]


def _warning(spec: JobSpec, minutes: int) -> str:
    """`--signal` counts from the end of Slurm's limit, which is later than the user's own."""
    asked = spec.batch.warning if spec.batch is not None else ""
    if not asked:
        return ""
    what, _, ahead = asked.partition("@")
    late_s = minutes * 60 - spec.time_limit_s if spec.time_limit_s else 0
    return f"{what}@{int(ahead or WARNED_S) + late_s}"


def parse_submit(text: str) -> str:
    """The job's id; empty when there is none."""
    found = re.fullmatch(r"(\d+)(;[^\n]*)?\n?", text.rpartition("\n")[0].rpartition("\n")[2] + "\n")
    return found[1] if found else ""


def queue(keys: Sequence[Key]) -> list[str]:
    names = ",".join(map(layout.name_of, keys))
    return ["squeue", "--noheader", "--all", "--local", "--states=all", f"--name={names}", "-o", "%i|%U|%T|%N|%S|%j"]


def accounting(keys: Sequence[Key], since: float) -> list[str]:
    """Times are UTC's: the command has to run with TZ=UTC, and as all of them with SLURM_TIME_FORMAT=%s."""
    names = ",".join(map(layout.name_of, keys))
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(0.0, since - SINCE_SLACK_S)))
    options = ["--noheader", "--parsable2", "--allocations", "--duplicates", "--allusers", "--local"]
    return [
        "sacct",
        *options,
        f"--starttime={start}",
        f"--name={names}",
        "--format=JobIDRaw,UID,State,NodeList,Start,JobName",
    ]


def parse_rows(text: str) -> dict[Key, list[Row]]:
    """Of either. Raises ValueError for what is no row: then nothing is known of any job."""
    rows: dict[Key, list[Row]] = {}
    for line in text.splitlines():
        fields = line.split("|", _FIELDS - 1)
        if len(fields) != _FIELDS or not fields[1].strip().isdecimal():
            raise ValueError(line[:80])
        key = layout.key_of(fields[5].strip())
        if key is not None:
            start = fields[4].strip()
            row = Row(
                job_id=fields[0].strip(),
                uid=int(fields[1]),
                state=fields[2],
                placed=fields[3].strip() not in _NOWHERE,
                started_at=int(start) if start.isdecimal() else 0,
            )
            rows.setdefault(key, []).append(row)
    return rows


def cancel(key: Key, uid: int) -> list[str]:
    return ["scancel", "--quiet", f"--name={layout.name_of(key)}", f"--user={uid}"]


def signal(key: Key, uid: int, number: int) -> list[str]:
    """To the wrapper, which hands it on. What no wrapper can hand on goes to all processes."""
    to = "--batch" if number in HANDED_ON else "--full"
    return [*cancel(key, uid), f"--signal={number}", to]


HANDED_ON = frozenset({1, 2, 3, 10, 12})  # HUP INT QUIT USR1 USR2: see wrapper.sh


def room(where: Where) -> list[str]:
    partition = f"--partition={where.partition}" if where.partition else "--all"  # sinfo takes one of them
    return ["sinfo", "--noheader", partition, "--local", "-o", "%C|%l|%a|%P|%c|%m|%G"]


def parse_room(text: str, name: str) -> tuple[Room, frozenset[str]]:
    """And the names of its nodes' GRES. Where several partitions are told of, the default one counts.

    Raises ValueError.
    """
    rows = [line.split("|", 6) for line in text.splitlines()]
    if any(len(row) != 7 or row[0].count("/") != 3 for row in rows):
        raise ValueError(text[:80])
    rows = [row for row in rows if row[3].strip().endswith("*")] or rows
    up = [row for row in rows if row[2].strip() == "up"]
    idle = sum(int(cpus.split("/")[1]) for cpus, *_ in up)
    longest = max((seconds(limit) for _, limit, *_ in up), default=0)
    longest_s = 0 if longest > MAX_DAYS * 86_400 else longest
    room = Room(
        pool=name,
        free_jobs=1,
        free_cpus=idle,
        longest_s=longest_s,
        most_cpus=_most(row[4] for row in up),
        most_memory_mib=_most(row[5] for row in up),
    )
    return room, frozenset(one.split(":")[0].strip() for row in up for one in row[6].split(","))


def waits(where: Where) -> list[str]:
    """Times are Unix seconds: the command has to run with SLURM_TIME_FORMAT=%s."""
    partition = [f"--partition={where.partition}"] if where.partition else ["--all"]
    states = "--states=PENDING,RUNNING"
    return ["squeue", "--noheader", *partition, "--local", states, "-o", "%T|%S|%e|%r"]


def parse_waits(text: str) -> float:
    """Unix seconds of the last start that Slurm foresees of what waits for room, or, when nothing does, of the next end
    by a time limit; 0: it tells neither. Raises ValueError.
    """
    rows = [line.split("|", 3) for line in text.splitlines()]
    if any(len(row) != 4 for row in rows):
        raise ValueError(text[:80])
    if waiting := [start for state, start, _, why in rows if state == "PENDING" and why.strip() in _WAITS_FOR_ROOM]:
        return max(map(_at, waiting))
    return min((at for state, _, end, _ in rows if state == "RUNNING" and (at := _at(end))), default=0.0)


def _at(told: str) -> float:
    return float(told) if told.isascii() and told.isdecimal() and len(told) <= MOST_DIGITS else 0.0


def _most(told: Iterable[str]) -> int:
    """Of a node; 0: that is not said, as a `+` stands for nodes that have more. Raises ValueError."""
    found = [one.strip() for one in told]
    return 0 if any(one.endswith("+") for one in found) else max(map(int, found), default=0)


def seconds(limit: str) -> int:
    """Of [DAYS-]HOURS:MINUTES:SECONDS, or MINUTES:SECONDS. Raises ValueError."""
    limit = limit.strip()
    if limit in ("infinite", "UNLIMITED", "n/a"):
        return (MAX_DAYS + 1) * 86_400
    days, dash, clock = limit.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total + (int(days) * 86_400 if dash else 0)
