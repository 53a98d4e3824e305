"""Between the wire and the words of the agent alone."""

from collections.abc import Iterable

from slurm_plugin.agent.binding import Waiting
from slurm_plugin.agent.terms import Offer, Terms
from slurm_plugin.proto.vgpu.v1 import pool_pb2


def waiting_to_wire(waiting: Iterable[Waiting]) -> list[pool_pb2.Waiting]:
    return [
        pool_pb2.Waiting(
            job_id=one.run.key.job_id, gres_class=one.want.gres_class, count=one.want.count, since=one.since
        )
        for one in waiting
    ]


def terms_from_wire(offers: pool_pb2.Offers) -> Terms:
    return Terms(
        offers={one.slice: Offer(gres_class=one.gres_class, ask=one.ask) for one in offers.offers},
        classes={one.gres_class: tuple(one.profiles) for one in offers.classes},
        gpus=frozenset(offers.gpus),
        others=frozenset(offers.others),
        observe=offers.observe,
        reset_gpus=offers.reset_gpus,
    )
