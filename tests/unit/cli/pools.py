"""A pool as the controller tells it, with one of everything, for the tests of this folder."""

from slurm_plugin.proto.vgpu.v1 import pool_pb2

GPU = "GPU-00000000-0000-0000-0000-000000000001"


def profile(name: str, size: int, starts: tuple[int, ...]) -> pool_pb2.GpuProfile:
    return pool_pb2.GpuProfile(
        name=name, gi_profile_id=1, compute_slices=size, memory_mib=size * 10240, starts=starts, size=size
    )


def instance(
    name: str, start: int, size: int, gi: int, *, uuid: str = "", ci: int = 0, foreign: bool = False, held_by: str = ""
) -> pool_pb2.Instance:
    return pool_pb2.Instance(
        profile=name, start=start, size=size, gi=gi, ci=ci, uuid=uuid, foreign=foreign, held_by=held_by
    )


def status() -> pool_pb2.PoolStatus:
    """Node n1: GPU 0 holds a busy 3g, an idle 1g as m10, a withheld 1g; GPU 1 is empty. All counts are right."""
    gpu = pool_pb2.Gpu(
        uuid=GPU,
        index=0,
        minor=0,
        name="NVIDIA H100 80GB HBM3",
        mig="enabled",
        memory_mib=81559,
        profiles=[profile("1g.10gb", 1, (0, 1, 2, 3, 4, 5, 6)), profile("3g.40gb", 4, (0, 4))],
        instances=[
            instance("3g.40gb", 0, 4, 1, uuid="MIG-a"),
            instance("1g.10gb", 4, 1, 11, uuid="MIG-b"),
            instance("1g.10gb", 5, 1, 12, uuid="MIG-c"),
        ],
    )
    inventory = pool_pb2.Inventory(
        node="n1",
        revision=7,
        gpus=[gpu],
        grants=[
            pool_pb2.Grant(
                job_id=12,
                started_at=1000,
                uid=0,
                gres_class="m40",
                count=1,
                slices=["MIG-a"],
                made_at=1001.5,
                isolation="mig+modes+cgroup",
            ),
            pool_pb2.Grant(job_id=13, started_at=1000, uid=4242, made_at=1001.5),
        ],
        agent_version="0.1.0",
        started_at=900,
    )
    node = pool_pb2.NodeStatus(
        node="n1",
        slurm_state="MIXED",
        slurm_gres="vgpu:m40:1,vgpu:m10:1,vgpu:pad:998,vgpu_mem:8",
        slurm_gres_used="vgpu:m40:1,vgpu:m10:0,vgpu:pad:0,vgpu_mem:4",
        agent_connected=True,
        inventory=inventory,
        offers=[
            pool_pb2.Offer(slice="MIG-a", gres_class="m40"),
            pool_pb2.Offer(slice="MIG-b", gres_class="m10"),
            pool_pb2.Offer(slice="MIG-c", gres_class=""),
        ],
    )
    return pool_pb2.PoolStatus(
        pool="hpc",
        nodes=[node],
        pending=[
            pool_pb2.PendingJob(
                job_id=20, uid=4242, priority=99, gres_class="m20", count=2, nodes=1, reason="PartitionDown"
            )
        ],
        controller_version="0.1.0",
        started_at=500,
        passes=10,
        last_pass_s=0.004,
        mode="manage",
    )
