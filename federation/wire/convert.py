"""Messages to protobuf and back. What comes in is checked for what every reader counts on, here and nowhere else."""

import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from federation.model import messages as m
from federation.model.spec import Array, Batch, Input, JobSpec, Lease, OnSilence
from federation.model.states import End, Outcome, Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb

MAX_MESSAGE_BYTES = 8 << 20
MAX_ATTEMPT = 1 << 20
MAX_TEXT = 4096  # characters of a reason or name that is kept
MAX_NODE, MAX_SLICES = 64, 400  # characters of where it ran, and of what it had there
MAX_RECORDS = 1000  # of one message
MAX_POOLS = 1000
MAX_CATALOGUE = 32_768  # characters of a pool's
MAX_LIMITS = 64  # resource limits of a job
MOST_MONEY = 1e9  # an hour, as in fed.yaml; and seconds until a start

_SILENCE = {
    OnSilence.KEEP: pb.ON_SILENCE_KEEP,
    OnSilence.REPLACE: pb.ON_SILENCE_REPLACE,
    OnSilence.STOP: pb.ON_SILENCE_STOP,
}
_STATE = {state: pb.State.Value(f"STATE_{state.name}") for state in Target}
_SILENCE_OF = {number: word for word, number in _SILENCE.items()}
_STATE_OF = {number: state for state, number in _STATE.items()}
_ENDS = {end.value: end for end in End}


# -- out


def to_wire(message: m.Message) -> pb.Envelope:
    """A Submit goes without its signature: that is put in where it is sent."""
    name, convert = _OUT[type(message)]
    return pb.Envelope(**{name: convert(message)})


def key_to_wire(key: Key) -> pb.Key:
    return pb.Key(token=key.token.bytes, attempt=key.attempt)


def spec_to_wire(spec: JobSpec) -> pb.Spec:
    return pb.Spec(
        user=spec.user,
        account=spec.account,
        name=spec.name,
        script=spec.script,
        args=spec.args,
        env=[pb.Variable(name=name, value=value) for name, value in spec.env],
        gres=spec.gres,
        cpus=spec.cpus,
        memory_mib=spec.memory_mib,
        time_limit_s=spec.time_limit_s,
        pin=spec.pin,
        deadline_at=spec.deadline_at,
        inputs=[pb.Input(path=one.path, size=one.size, sha256=one.sha256) for one in spec.inputs],
        outputs=spec.outputs,
        on_silence=_SILENCE[spec.lease.on_silence],
        lease_s=spec.lease.after_s,
        batch=None if spec.batch is None else _batch_to_wire(spec.batch),
    )


def _batch_to_wire(batch: Batch) -> pb.SlurmBatch:
    array = batch.array
    return pb.SlurmBatch(
        job_id=batch.job_id,
        array=None
        if array is None
        else pb.ArrayPlace(
            job_id=array.job_id,
            task_id=array.task_id,
            count=array.count,
            lowest=array.lowest,
            highest=array.highest,
            step=array.step,
        ),
        joined=batch.joined,
        umask=batch.umask,
        limits=[pb.ResourceLimit(name=name, soft=soft) for name, soft in batch.limits],
        warning=batch.warning,
        folder=batch.folder,
        stdin=batch.stdin,
    )


def _record_to_wire(record: m.Record) -> pb.Record:
    return pb.Record(
        key=key_to_wire(record.key),
        revision=record.revision,
        state=_STATE[record.state],
        outcome=None if record.outcome is None else _outcome_to_wire(record.outcome),
        started_at=record.started_at,
        signals=record.signals,
        why=_told(record.why),
    )


def _outcome_to_wire(outcome: Outcome) -> pb.Outcome:
    return pb.Outcome(
        end=outcome.end.value,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        stdout_size=outcome.stdout_size,
        stderr_size=outcome.stderr_size,
        reason=_told(outcome.reason),
        node=_told(outcome.node),
        cpu_s=outcome.cpu_s,
        memory_mib=outcome.memory_mib,
        slices=_told(outcome.slices),
    )


def _room_to_wire(room: m.Room) -> pb.Room:
    return pb.Room(
        pool=room.pool,
        catalogue=room.catalogue,
        slices=dict(room.slices),
        free_jobs=room.free_jobs,
        free_cpus=room.free_cpus,
        starts_in_s=room.starts_in_s,
        price_per_hour=room.price_per_hour,
        gpu_price_per_hour=room.gpu_price_per_hour,
        longest_s=room.longest_s,
        why=_told(room.why),
        batch=room.batch,
        most_cpus=room.most_cpus,
        most_memory_mib=room.most_memory_mib,
        complete=room.complete,
    )


def _changes_to_wire(changes: m.Changes) -> pb.Changes:
    records = [_record_to_wire(one) for one in changes.records]
    return pb.Changes(journal=changes.journal.bytes, after=changes.after, upto=changes.upto, records=records)


def _submit_to_wire(submit: m.Submit) -> pb.Submit:
    spec = spec_to_wire(submit.spec)
    return pb.Submit(key=key_to_wire(submit.key), pool=submit.pool, spec=spec, again=submit.again, over=submit.over)


_OUT: dict[type, tuple[str, Callable[[Any], Any]]] = {
    m.Submit: ("submit", _submit_to_wire),
    m.Cancel: ("cancel", lambda x: pb.Cancel(key=key_to_wire(x.key), pool=x.pool)),
    m.Signal: ("signal", lambda x: pb.Signal(key=key_to_wire(x.key), number=x.number, signal=x.signal)),
    m.Release: ("release", lambda x: pb.Release(key=key_to_wire(x.key))),
    m.Follow: ("follow", lambda x: pb.Follow(journal=x.journal.bytes if x.journal else b"", after=x.after)),
    m.Told: ("told", lambda x: pb.Told(journal=x.journal.bytes, record=_record_to_wire(x.record))),
    m.Busy: ("busy", lambda x: pb.Busy(key=key_to_wire(x.key), why=_told(x.why))),
    m.Changes: ("changes", _changes_to_wire),
    m.Rooms: ("rooms", lambda x: pb.Rooms(pools=[_room_to_wire(one) for one in x.pools])),
}


def _told(text: str) -> str:
    """What a backend said may be no text, or long: it may keep nothing else from being told."""
    return text[:MAX_TEXT] if text.isascii() else text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


# -- in


def from_wire(envelope: pb.Envelope) -> m.Message | None:
    """None: what is no message about jobs (hello, credit), or one that this version does not know.

    Raises ValueError for what no site may send.
    """
    name = envelope.WhichOneof("message")
    convert = _IN.get(name or "")
    return None if convert is None else convert(getattr(envelope, name or ""))


def key_from_wire(key: pb.Key) -> Key:
    if not 1 <= key.attempt <= MAX_ATTEMPT:
        raise ValueError(f"there is no attempt {key.attempt}")
    return Key(UUID(bytes=key.token), key.attempt)


def spec_from_wire(spec: pb.Spec) -> JobSpec:
    if spec.on_silence not in _SILENCE_OF:
        raise ValueError(f"a lease of kind {spec.on_silence} is not known here")
    return JobSpec(
        user=_short(spec.user),
        account=_short(spec.account),
        name=spec.name,
        script=spec.script,
        args=tuple(spec.args),
        env=tuple((one.name, one.value) for one in spec.env),
        gres=_short(spec.gres),
        cpus=spec.cpus,
        memory_mib=_counted(spec.memory_mib),
        time_limit_s=_counted(spec.time_limit_s),
        pin=_short(spec.pin),
        deadline_at=_number(spec.deadline_at) if spec.HasField("deadline_at") else None,
        inputs=tuple(Input(path=one.path, size=_counted(one.size), sha256=one.sha256) for one in spec.inputs),
        outputs=tuple(spec.outputs),
        lease=Lease(on_silence=_SILENCE_OF[spec.on_silence], after_s=_number(spec.lease_s)),
        batch=_batch_from_wire(spec.batch) if spec.HasField("batch") else None,
    )


def _batch_from_wire(batch: pb.SlurmBatch) -> Batch:
    array = batch.array
    if len(batch.limits) > MAX_LIMITS:
        raise ValueError(f"more than {MAX_LIMITS} resource limits of one job")
    return Batch(
        job_id=_counted(batch.job_id),
        array=Array(
            job_id=_counted(array.job_id),
            task_id=array.task_id,
            count=array.count,
            lowest=array.lowest,
            highest=array.highest,
            step=array.step,
        )
        if batch.HasField("array")
        else None,
        joined=batch.joined,
        umask=batch.umask & 0o777,
        limits=tuple((_short(one.name), one.soft) for one in batch.limits),
        warning=_short(batch.warning),
        folder=batch.folder,
        stdin=batch.stdin,
    )


def _record_from_wire(record: pb.Record) -> m.Record:
    """A state that a newer site made up is one in which the attempt is not over."""
    return m.Record(
        key=key_from_wire(record.key),
        revision=_counted(record.revision),
        state=_STATE_OF.get(record.state, Target.SUBMITTING),
        outcome=_outcome_from_wire(record.outcome) if record.HasField("outcome") else None,
        started_at=_number(record.started_at) if record.HasField("started_at") else None,
        signals=record.signals,
        why=record.why[:MAX_TEXT],
    )


def _outcome_from_wire(outcome: pb.Outcome) -> Outcome:
    end = _ENDS.get(outcome.end)
    reason = outcome.reason if end else f"{outcome.end}: {outcome.reason}"
    return Outcome(
        end=end or End.LOST,
        exit_code=outcome.exit_code if outcome.HasField("exit_code") else None,
        signal=outcome.signal if outcome.HasField("signal") else None,
        started_at=_number(outcome.started_at) if outcome.HasField("started_at") else None,
        ended_at=_number(outcome.ended_at) if outcome.HasField("ended_at") else None,
        stdout_size=_counted(outcome.stdout_size),
        stderr_size=_counted(outcome.stderr_size),
        reason=reason[:MAX_TEXT],
        node=outcome.node[:MAX_NODE],
        cpu_s=_amount(outcome.cpu_s) if outcome.HasField("cpu_s") else None,
        memory_mib=_counted(outcome.memory_mib) if outcome.HasField("memory_mib") else None,
        slices=outcome.slices[:MAX_SLICES],
    )


def _room_from_wire(room: pb.Room) -> m.Room:
    return m.Room(
        pool=_short(room.pool),
        catalogue=_short(room.catalogue, MAX_CATALOGUE),
        slices=tuple(sorted(room.slices.items())),
        free_jobs=room.free_jobs,
        free_cpus=room.free_cpus,
        starts_in_s=_amount(room.starts_in_s),
        price_per_hour=_amount(room.price_per_hour),
        gpu_price_per_hour=_amount(room.gpu_price_per_hour),
        longest_s=room.longest_s,
        why=room.why[:MAX_TEXT],
        batch=room.batch,
        most_cpus=room.most_cpus,
        most_memory_mib=room.most_memory_mib,
        complete=room.complete,
    )


def _changes_from_wire(changes: pb.Changes) -> m.Changes:
    if len(changes.records) > MAX_RECORDS:
        raise ValueError(f"more than {MAX_RECORDS} records in one message")
    return m.Changes(
        journal=UUID(bytes=changes.journal),
        after=_counted(changes.after),
        upto=_counted(changes.upto),
        records=tuple(_record_from_wire(one) for one in changes.records),
    )


def _rooms_from_wire(rooms: pb.Rooms) -> m.Rooms:
    if len(rooms.pools) > MAX_POOLS:
        raise ValueError(f"more than {MAX_POOLS} pools")
    return m.Rooms(pools=tuple(_room_from_wire(one) for one in rooms.pools))


def _submit_from_wire(submit: pb.Submit) -> m.Submit:
    key, spec = key_from_wire(submit.key), spec_from_wire(submit.spec)
    return m.Submit(key=key, pool=_short(submit.pool), spec=spec, again=submit.again, over=submit.over)


_IN: dict[str, Callable[[Any], m.Message]] = {
    "submit": _submit_from_wire,
    "cancel": lambda x: m.Cancel(key=key_from_wire(x.key), pool=_short(x.pool)),
    "signal": lambda x: m.Signal(key=key_from_wire(x.key), number=x.number, signal=x.signal),
    "release": lambda x: m.Release(key=key_from_wire(x.key)),
    "follow": lambda x: m.Follow(journal=UUID(bytes=x.journal) if x.journal else None, after=_counted(x.after)),
    "told": lambda x: m.Told(journal=UUID(bytes=x.journal), record=_record_from_wire(x.record)),
    "busy": lambda x: m.Busy(key=key_from_wire(x.key), why=x.why[:MAX_TEXT]),
    "changes": _changes_from_wire,
    "rooms": _rooms_from_wire,
}


def _short(text: str, most: int = MAX_TEXT) -> str:
    if len(text) > most:
        raise ValueError("a name or a list is too long")
    return text


def _number(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("a time or price is no number")
    return value


def _amount(value: float) -> float:
    """What is counted with: sums of it stay numbers."""
    return min(max(0.0, _number(value)), MOST_MONEY)


def _counted(value: int) -> int:
    if value >= 1 << 63:
        raise ValueError("a number is too large")
    return value
