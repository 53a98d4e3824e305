"""Between the wire's messages and the words of the controller alone. Protobuf stays here and at the edge."""

from collections.abc import Iterable, Mapping, Sequence

from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.state import GpuPlan, OfferOut, Pause, Serving
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.wire import shapes_to_wire

JOBS_TOLD = 10  # of those that wait for the same reason


def offers_message(
    offers: Iterable[OfferOut],
    serving: Serving,
    gpus: Iterable[str],
    *,
    others: Iterable[str] = (),
    observe: bool = False,
    reset_gpus: bool = False,
) -> pb.Offers:
    return pb.Offers(
        offers=[pb.Offer(slice=o.slice, gres_class=o.gres_class, ask=o.ask) for o in offers],
        classes=[pb.ClassProfiles(gres_class=name, profiles=served) for name, served in serving.profiles.items()],
        gpus=list(gpus),
        others=list(others),
        observe=observe,
        reset_gpus=reset_gpus,
    )


def pause_message(pause: Pause | None) -> pb.Pause | None:
    return pb.Pause(since=pause.since, uid=pause.uid, reason=pause.reason) if pause else None


def _jobs(jobs: Sequence[int]) -> str:
    more = f" and {len(jobs) - JOBS_TOLD} more" if len(jobs) > JOBS_TOLD else ""
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs[:JOBS_TOLD]))}{more}"


def plan_message(
    plans: Iterable[GpuPlan], problems: Mapping[str, Iterable[str]], recuts: Recuts, why: str
) -> pb.PlanReply:
    return pb.PlanReply(
        gpus=[
            pb.GpuPlan(
                node=p.node,
                gpu=p.gpu,
                index=p.index,
                action=p.action,
                keep=shapes_to_wire(p.keep),
                destroy=shapes_to_wire(p.destroy),
                create=shapes_to_wire(p.create),
                why=p.why,
            )
            for p in plans
        ],
        problems=[f"{node}: {line}" if node else line for node, lines in problems.items() for line in lines],
        why=why,
        waiting=[f"{_jobs(one.jobs)}: {one.why}" for one in recuts.waiting],
    )
