"""PURE: how many bytes a message keeps in memory while it waits, about: what may be large in it is counted."""

from federation.model.messages import Changes, Message, Rooms, Submit
from federation.model.spec import JobSpec

SMALL_BYTES = 512  # what a message, record, pool or file takes, about, beside its texts


def weight(message: Message) -> int:
    match message:
        case Submit():
            return SMALL_BYTES + _spec_bytes(message.spec)
        case Changes():
            return SMALL_BYTES * (1 + len(message.records))
        case Rooms():
            return SMALL_BYTES + sum(SMALL_BYTES * (1 + len(one.slices)) + len(one.catalogue) for one in message.pools)
        case _:
            return SMALL_BYTES


def _spec_bytes(spec: JobSpec) -> int:
    texts = (spec.script, spec.name, spec.account, spec.gres, *spec.args, *spec.outputs)
    pairs = sum(len(name) + len(value) for name, value in spec.env)
    return sum(map(len, texts)) + pairs + sum(SMALL_BYTES + len(one.path) for one in spec.inputs)
