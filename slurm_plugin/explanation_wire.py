"""Explanations on the wire, both ways."""

from slurm_plugin.explanation import Blocker, Change, Explanation, Instead, Serves, Why
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

_PLAIN = (
    *("job_id", "uid", "gres_class", "count", "nodes", "tasks", "priority", "submitted_at", "reason", "limit", "idle"),
    *("placeable", "ahead", "strikes", "back_at", "holders", "free_at", "planner"),
    *("withheld", "kept", "gathered", "again_at"),
)


def to_wire(one: Explanation) -> pb.ExplainReply:
    reply = pb.ExplainReply(
        **{name: getattr(one, name) for name in _PLAIN},
        why=one.why,
        blockers=[pb.Blocker(job_id=b.job_id, node=b.node, gpus=b.gpus, ends_at=b.ends_at) for b in one.blockers],
        instead=[pb.Instead(gres_class=other.gres_class, idle=other.idle) for other in one.instead],
        serves=[pb.Serves(layout=each.layout, hosts=each.hosts) for each in one.serves],
        profiles=one.profiles,
        closed=one.closed,
    )
    if change := one.change:
        reply.change.CopyFrom(
            pb.ChangeToCome(node=change.node, gpu=change.gpu, creates=change.creates, why=change.why, at=change.at)
        )
    return reply


def from_wire(reply: pb.ExplainReply) -> Explanation:
    change = reply.change
    return Explanation(
        **{name: getattr(reply, name) for name in _PLAIN},
        why=Why(reply.why),
        blockers=tuple(
            Blocker(job_id=b.job_id, node=b.node, gpus=tuple(b.gpus), ends_at=b.ends_at) for b in reply.blockers
        ),
        change=Change(node=change.node, gpu=change.gpu, creates=tuple(change.creates), why=change.why, at=change.at)
        if reply.HasField("change")
        else None,
        instead=tuple(Instead(gres_class=other.gres_class, idle=other.idle) for other in reply.instead),
        serves=tuple(Serves(layout=each.layout, hosts=tuple(each.hosts)) for each in reply.serves),
        profiles=tuple(reply.profiles),
        closed=tuple(reply.closed),
    )
