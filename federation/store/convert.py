"""Rows to records and back. Bytes inside a JSON text are its characters 0 to 255, one each."""

import json
from dataclasses import asdict, fields
from sqlite3 import Row
from typing import Any
from uuid import UUID

from federation.model.job import Attempt, Job
from federation.model.spec import Array, Batch, Input, JobSpec, Lease, OnSilence
from federation.model.states import End, Origin, Outcome, Target
from federation.model.token import Key

_OUTCOME = tuple(one.name for one in fields(Outcome))


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def spec_to_blob(spec: JobSpec) -> bytes:
    facts: dict[str, Any] = {
        "user": spec.user,
        "account": spec.account,
        "name": _text(spec.name),
        "script": _text(spec.script),
        "args": [_text(one) for one in spec.args],
        "env": [[_text(name), _text(value)] for name, value in spec.env],
        "gres": spec.gres,
        "cpus": spec.cpus,
        "memory_mib": spec.memory_mib,
        "time_limit_s": spec.time_limit_s,
        "pin": spec.pin,
        "deadline_at": spec.deadline_at,
        "inputs": [[_text(one.path), one.size, one.sha256.hex()] for one in spec.inputs],
        "outputs": [_text(one) for one in spec.outputs],
        "lease": [spec.lease.on_silence, spec.lease.after_s],
    }
    if spec.batch is not None:
        paths = {"folder": _text(spec.batch.folder), "stdin": _text(spec.batch.stdin)}
        facts["batch"] = asdict(spec.batch) | paths
    return json.dumps(facts, separators=(",", ":")).encode()


def spec_from_blob(blob: bytes) -> JobSpec:
    facts = json.loads(blob)
    on_silence, after_s = facts.pop("lease")
    return JobSpec(
        user=facts["user"],
        account=facts["account"],
        name=_bytes(facts["name"]),
        script=_bytes(facts["script"]),
        args=tuple(map(_bytes, facts["args"])),
        env=tuple((_bytes(name), _bytes(value)) for name, value in facts["env"]),
        gres=facts["gres"],
        cpus=facts["cpus"],
        memory_mib=facts["memory_mib"],
        time_limit_s=facts["time_limit_s"],
        pin=facts["pin"],
        deadline_at=facts["deadline_at"],
        inputs=tuple(
            Input(path=_bytes(path), size=size, sha256=bytes.fromhex(sha256)) for path, size, sha256 in facts["inputs"]
        ),
        outputs=tuple(map(_bytes, facts["outputs"])),
        lease=Lease(on_silence=OnSilence(on_silence), after_s=after_s),
        batch=_batch(facts["batch"]) if "batch" in facts else None,
    )


def _batch(facts: dict[str, Any]) -> Batch:
    array = facts["array"]
    return Batch(
        job_id=facts["job_id"],
        array=None if array is None else Array(**array),
        joined=facts["joined"],
        umask=facts["umask"],
        limits=tuple((name, soft) for name, soft in facts["limits"]),
        warning=facts["warning"],
        folder=_bytes(facts["folder"]),
        stdin=_bytes(facts.get("stdin", "")),
    )


def _outcome_to_text(outcome: Outcome | None) -> str | None:
    return (
        None
        if outcome is None
        else json.dumps({name: getattr(outcome, name) for name in _OUTCOME}, separators=(",", ":"))
    )


def _outcome_from_text(text: str | None) -> Outcome | None:
    if text is None:
        return None
    facts = json.loads(text)
    return Outcome(**facts | {"end": End(facts["end"])})


def job_to_row(job: Job) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    return (
        job.token.bytes,
        job.state.value,
        job.attempt,
        job.site,
        job.pool,
        job.user,
        job.account,
        job.name,
        job.lease.on_silence.value,
        job.lease.after_s,
        job.accepted_at,
        job.due_at,
        job.tries,
        job.revision,
        job.far and job.far.value,
        job.signals,
        job.cost,
        job.cost_day,
        json.dumps(job.avoid) if job.avoid else "",
        json.dumps(job.reasons) if job.reasons else "",
        job.why,
        job.started_at,
        job.ended_at,
        _outcome_to_text(job.outcome),
    )


def job_from_row(row: Row) -> Job:
    return Job(
        token=UUID(bytes=row["token"]),
        state=Origin(row["state"]),
        attempt=row["attempt"],
        site=row["site"],
        pool=row["pool"],
        user=row["user"],
        account=row["account"],
        name=row["name"],
        lease=Lease(on_silence=OnSilence(row["on_silence"]), after_s=row["lease_s"]),
        accepted_at=row["accepted_at"],
        due_at=row["due_at"],
        tries=row["tries"],
        revision=row["revision"],
        far=Target(row["far"]) if row["far"] else None,
        signals=row["signals"],
        cost=row["cost"],
        cost_day=row["cost_day"],
        avoid=tuple((pool, why) for pool, why in json.loads(row["avoid"] or "[]")),
        reasons=tuple((pool, reason) for pool, reason in json.loads(row["reasons"] or "[]")),
        why=row["why"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=_outcome_from_text(row["outcome"]),
    )


def attempt_to_row(attempt: Attempt) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    return (
        attempt.key.token.bytes,
        attempt.key.attempt,
        attempt.origin,
        attempt.pool,
        attempt.user,
        attempt.state.value,
        attempt.revision,
        attempt.lease_s,
        attempt.due_at,
        attempt.tries,
        attempt.misses,
        attempt.handle,
        attempt.signals,
        attempt.started_at,
        attempt.ended_at,
        _outcome_to_text(attempt.outcome),
        attempt.stopped_for.value,
        attempt.why,
        attempt.input_bytes,
        attempt.vain,
    )


def attempt_from_row(row: Row) -> Attempt:
    return Attempt(
        key=Key(UUID(bytes=row["token"]), row["attempt"]),
        origin=row["origin"],
        pool=row["pool"],
        user=row["user"],
        state=Target(row["state"]),
        revision=row["revision"],
        lease_s=row["lease_s"],
        due_at=row["due_at"],
        tries=row["tries"],
        misses=row["misses"],
        handle=row["handle"],
        signals=row["signals"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=_outcome_from_text(row["outcome"]),
        stopped_for=End(row["stopped_for"]),
        why=row["why"],
        input_bytes=row["input_bytes"],
        vain=row["vain"],
    )
