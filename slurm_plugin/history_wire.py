"""The history on the wire, both ways."""

from slurm_plugin.history import Entry, History
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

_PLAIN = (*("at", "what", "node", "gpu", "index", "why", "took_s", "error", "guarantee", "have", "at_least", "uid"),)


def to_wire(history: History) -> pb.HistoryReply:
    return pb.HistoryReply(
        entries=[
            pb.HistoryEntry(
                **{name: getattr(entry, name) for name in _PLAIN},
                destroyed=entry.destroyed,
                created=entry.created,
            )
            for entry in history.entries
        ],
        more=history.more,
    )


def from_wire(reply: pb.HistoryReply) -> History:
    return History(
        entries=tuple(
            Entry(
                **{name: getattr(entry, name) for name in _PLAIN},
                destroyed=tuple(entry.destroyed),
                created=tuple(entry.created),
            )
            for entry in reply.entries
        ),
        more=reply.more,
    )
