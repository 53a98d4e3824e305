"""A process that reads the queue through pyslurm, for `pyslurm_queue`, which starts it and asks.

Apart from the daemon, since importing pyslurm ends the process when no slurm.conf is found, since it holds the
interpreter for as long as slurmctld takes to answer, and since what it loads stays in memory beside the queue itself.

It says its version in a line, or `!` and why there is none. For each line it reads, a JSON object with `gres` and
`partitions`, it answers with the length of a text in a line and the text: rows as `table.lines` has them; or with a
line of `!` and an error.
"""

import json
import os
import sys
from collections.abc import Collection, Iterator
from typing import IO, Any

from slurm_plugin.slurm import table
from slurm_plugin.slurm.queue import QUEUE_FIELDS

_NUMBERS = {
    **{"JobID": "id", "UserID": "user_id", "PriorityLong": "priority", "NumNodes": "num_nodes", "NumCPUs": "cpus"},
    **{"StartTime": "start_time", "SubmitTime": "submit_time"},
}
_TEXTS = {
    **{"State": "state", "Partition": "partition", "ReqNodes": "required_nodes", "ExcNodes": "excluded_nodes"},
    **{"Reservation": "reservation", "NodeList": "allocated_nodes", "Account": "account", "QOS": "qos"},
}


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")  # whatever a library prints does not get among them
    os.dup2(2, 1)
    try:
        import pyslurm
    except ImportError as error:
        _say(answers, f"!{error}")
        return 1
    _say(answers, str(pyslurm.__version__))
    for question in sys.stdin:
        asked = json.loads(question)
        try:
            rows = list(_rows(pyslurm.Jobs.load(), asked["gres"], frozenset(asked["partitions"])))
        except pyslurm.RPCError as error:
            _say(answers, f"!{error}")
            continue
        text = table.LINE.join(rows).encode()
        _say(answers, str(len(text)))
        answers.write(text)
        answers.flush()
    return 0


def _say(answers: IO[bytes], line: str) -> None:
    answers.write(" ".join(line.split()).encode() + b"\n")
    answers.flush()


def _rows(jobs: Any, gres: str, partitions: Collection[str]) -> Iterator[str]:
    for job in jobs.values():
        asked = _gres(job)
        if gres in asked and (not partitions or not set((job.partition or "").split(",")).isdisjoint(partitions)):
            fields = {name: str(getattr(job, attribute) or 0) for name, attribute in _NUMBERS.items()}
            fields |= {name: getattr(job, attribute) or "" for name, attribute in _TEXTS.items()}
            fields |= {
                "ArrayJobID": str(job.array_id or job.id),
                "ArrayTaskID": _elements(job),
                "Reason": (job.state_reason or "None").replace(" ", "_"),
                "Feature": ",".join(job.constraints or ()),
                "TimeLimit": f"{job.time_limit}:00" if isinstance(job.time_limit, int) else "UNLIMITED",
                "tres-per-node": asked,
            }
            yield table.line(fields[name] for name in QUEUE_FIELDS)


def _elements(job: Any) -> str:
    """As squeue prints them: those of an array that wait, with their limit. One element alone counts as any job."""
    waiting, limit = job.array_tasks_waiting, job.array_tasks_parallel
    return f"{waiting}%{limit}" if waiting and limit else waiting or "N/A"


def _gres(job: Any) -> str:
    """What a job asks for on a node; "" when pyslurm can't read it."""
    try:
        asked = job.gres_per_node or {}
    except (IndexError, ValueError):
        return ""
    counts = {name: count["count"] if isinstance(count, dict) else count for name, count in asked.items()}
    return ",".join(f"{name}:{count}" for name, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
