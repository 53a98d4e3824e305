from slurm_plugin.agent.convert import terms_from_wire
from slurm_plugin.agent.terms import Offer, Terms
from slurm_plugin.proto.vgpu.v1 import pool_pb2


def test_terms_are_read_as_they_were_said() -> None:
    offers = pool_pb2.Offers(
        offers=[pool_pb2.Offer(slice="a", gres_class="m20", ask=True), pool_pb2.Offer(slice="b")],
        classes=[pool_pb2.ClassProfiles(gres_class="m20", profiles=["1g.20gb", "2g.20gb"])],
        gpus=["A"],
        others=["B"],
        observe=True,
        reset_gpus=True,
    )
    assert terms_from_wire(offers) == Terms(
        offers={"a": Offer(gres_class="m20", ask=True), "b": Offer(gres_class="")},
        classes={"m20": ("1g.20gb", "2g.20gb")},
        gpus=frozenset("A"),
        others=frozenset("B"),
        observe=True,
        reset_gpus=True,
    )
