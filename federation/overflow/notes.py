"""PURE: what overflow writes on a job itself, in its AdminComment, and the mark of `--burst` that submit left there.

On one that runs elsewhere a note, ` fed:{...}`; on one that waits a short word, `[fed: may run in cloud/gpu]`.
Everything else there is other people's words, and stays; the vgpu pool keeps a note of its own beside it. Users can't
write an AdminComment. Our note is one line of flat JSON and holds no text of a user's.
"""

import json
import re
from uuid import UUID

from federation.model.job import Job
from federation.model.states import Origin
from federation.overflow.burst import Burst, Phase
from slurm_plugin.slurm.notes import plain

WORTH_BYTES = 256 << 20  # fewer have moved before somebody has asked

_WORD = re.compile(r" ?\[fed: ([^\]]*)\]")
_NOTE = re.compile(r" ?fed:\{[^{}]*\}")
_TOKEN = re.compile(r'"job":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')
_NAMES = re.compile(r"[A-Za-z0-9.,_/-]{0,400}")
_MARK = re.compile(r"(?:^| )fed:burst=(auto|always|never|pool:[A-Za-z0-9_.+-]{1,64})(?= |$)")

_STATES = {
    **dict.fromkeys((Origin.QUEUED, Origin.SENDING, Origin.UNKNOWN, Origin.ACCEPTED), "waiting"),
    Origin.RUNNING: "running",
    **dict.fromkeys((Origin.STOPPING, Origin.REQUEUING), "stopping"),
}


def noted(comment: str, note: str) -> str:
    """The comment with this note in the place of any before; without one for an empty note."""
    rest = _NOTE.sub("", comment).strip()
    return f"{rest} fed:{note}".strip() if note else rest


def note_in(comment: str) -> str:
    """The JSON of our note there; "": there is none."""
    found = _NOTE.findall(comment)
    return str(found[-1]).strip().removeprefix("fed:") if found else ""


def is_open(note: str) -> bool:
    """It may be running elsewhere, as local nodes read it."""
    return note.startswith('{"open":1')


def token_in(note: str) -> UUID | None:
    """Whose note it is."""
    found = _TOKEN.search(note)
    return UUID(found[1]) if found else None


def worded(comment: str, word: str) -> str:
    """The comment with this word in the place of any before."""
    rest = _WORD.sub("", comment).strip()
    return f"{rest} [fed: {plain(word)}]".strip()


def word_in(comment: str) -> str:
    found = _WORD.findall(comment)
    return str(found[-1]) if found else ""


def mark_in(comment: str) -> str:
    """What the user said with `--burst`: auto, always, never, or `pool:NAME`; "": nothing."""
    found = _MARK.findall(comment)
    return str(found[-1]) if found else ""


def moving(what: str, moved: int, total: int, *, stopped: bool) -> str:
    """How far its files are, in words that change ten times at the most; "": not worth a change of its record.

    `total` 0: not known.
    """
    if stopped:
        return f"{what}, stopped"
    return f"{what} {10 * moved // total * 10}%" if moved < total and total >= WORTH_BYTES else ""


def note(burst: Burst, job: Job | None, files: str = "") -> str:
    """What is to be on the job now. `open` is what keeps local nodes from starting it; a CLOSED burst has none.

    Times are Unix seconds by the clock of the site where it ran. `files`: what is moving of them.
    """
    facts: dict[str, object] = {} if burst.phase is Phase.CLOSED else {"open": 1}
    facts |= {"job": str(burst.token), "pool": burst.pool} | ({"files": files} if files else {})
    if job is not None:
        facts |= {"attempt": job.attempt, "state": state_of(job)} | _numbers(job)
    return json.dumps(facts, separators=(",", ":"))


def state_of(job: Job | None) -> str:
    """In one word, which is all that is worth a change of its record; None: it is not handed over yet."""
    return "waiting" if job is None else _STATES.get(job.state, "ended")


def _numbers(job: Job) -> dict[str, object]:
    """Of the run there, as far as its site told."""
    outcome = job.outcome
    started_at = outcome.started_at if outcome else job.started_at
    facts: dict[str, object] = {"start": int(started_at)} if started_at else {}
    if outcome is not None:
        facts |= {"end": int(outcome.ended_at)} if outcome.ended_at else {}
        facts |= {"how": outcome.end.value, "code": f"{outcome.exit_code or 0}:{outcome.signal or 0}"}
        used = {"cpu_s": outcome.cpu_s, "mem_mib": outcome.memory_mib, "slices": _word(outcome.slices)}
        facts |= {
            name: value for name, value in ({"node": _word(outcome.node)} | used).items() if value not in ("", None)
        }
    return facts | ({"cost": round(job.cost, 4)} if job.cost else {})


def _word(told: str) -> str:
    """What another site said, if it could be a name or a list of names."""
    return told if _NAMES.fullmatch(told) else ""
