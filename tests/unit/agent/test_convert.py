from slurm_plugin.agent.convert import gpu_to_wire, grant_to_wire, step_from_wire, terms_from_wire
from slurm_plugin.agent.terms import Offer, Terms
from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from tests.unit.agent.world import gpu, grant, instance


def test_a_gpu_keeps_all_that_the_wire_has_room_for() -> None:
    there = gpu("A", instances=(instance("A", "1g.20gb", 2, foreign=True), instance("A", "2g.20gb", 4, ci=-1, uuid="")))
    wire = gpu_to_wire(there)
    assert (wire.uuid, wire.mig, wire.memory_mib, len(wire.profiles)) == ("A", "enabled", 81920, 6)
    assert [(one.profile, one.start, one.ci, one.foreign) for one in wire.instances] == [
        ("1g.20gb", 2, 0, True),
        ("2g.20gb", 4, -1, False),
    ]
    assert list(wire.profiles[1].starts) == [0, 2, 4, 6]


def test_a_grant_is_told_whole() -> None:
    wire = grant_to_wire(grant(7, "a", "b", uid=5, started_at=9))
    assert (wire.job_id, wire.started_at, wire.uid, list(wire.slices), wire.count) == (7, 9, 5, ["a", "b"], 2)


def test_terms_and_steps_are_read_as_they_were_said() -> None:
    offers = pool_pb2.Offers(
        offers=[pool_pb2.Offer(slice="a", gres_class="m20", ask=True), pool_pb2.Offer(slice="b")],
        classes=[pool_pb2.ClassProfiles(gres_class="m20", profiles=["1g.20gb", "2g.20gb"])],
        gpus=["A"],
        observe=True,
    )
    assert terms_from_wire(offers) == Terms(
        offers={"a": Offer(gres_class="m20", ask=True), "b": Offer(gres_class="")},
        classes={"m20": ("1g.20gb", "2g.20gb")},
        gpus=frozenset("A"),
        observe=True,
    )
    shapes = [pool_pb2.SliceShape(profile="1g.20gb", start=2)]
    assert step_from_wire(pool_pb2.Step(id=1, gpu="A", destroy=shapes)) == Step(gpu="A", destroy=(("1g.20gb", 2),))


def test_a_gpu_that_could_never_be_read_is_told_with_its_fault() -> None:
    lost = Gpu(uuid="", index=1, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0, fault="GPU is lost")
    wire = gpu_to_wire(lost)
    assert (wire.index, wire.minor, wire.fault) == (1, -1, "GPU is lost")
