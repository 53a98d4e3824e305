"""Where a pool.yaml is wrong about what is there."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.misfit import mistakes, with_gpus, with_slurm
from slurm_plugin.planning import Follow, Guarantee, Planning
from slurm_plugin.pool import NodeGroup
from tests.unit.controller import pools

SLURM = {"gpu": {"State": "UP"}, "cpu": {"State": "UP"}, "vgpu-wait": {"State": "DOWN"}}


def test_partitions_that_are_there_are_right() -> None:
    assert not list(with_slurm(pools.config("n1"), SLURM))


def test_a_partition_that_is_not_there_is_told_with_the_nearest() -> None:
    wrong = with_slurm(replace(pools.config("n1"), partitions=("gpuu",)), SLURM)
    assert list(wrong) == ["partitions: Slurm has no partition 'gpuu'; did you mean 'gpu'?"]
    wrong = with_slurm(replace(pools.config("n1"), partitions=("accelerated",)), SLURM)
    assert list(wrong) == ["partitions: Slurm has no partition 'accelerated' (it has cpu, gpu)"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("vgpu-wiat", "did you mean 'vgpu-wait'"), ("cpu", "cpu is UP, not DOWN"), ("elsewhere", "it has vgpu-wait")],
)
def test_the_wait_partition_is_there_and_down(name: str, said: str) -> None:
    (wrong,) = with_slurm(replace(pools.config("n1"), wait_partition=name), SLURM)
    assert said in wrong


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (NodeGroup(hosts=("n1", "n2"), count=8), "nodes: n[1-2] have 3 or 4 GPUs, and count says 8"),
        (NodeGroup(hosts=("n1", "n2"), gpus=(0, 9)), "nodes: n[1-2] have 3 or 4 GPUs, and gpus names 9"),
        (NodeGroup(hosts=("n1", "n2"), count=4), ""),  # n2 has lost one: the file is right
        (NodeGroup(hosts=("n1", "n2"), gpus=(3,)), ""),
        (NodeGroup(hosts=("n3",), count=9, gpus=(8,)), ""),  # nobody has told of it
    ],
)
def test_gpus_of_an_entry_are_on_one_of_its_nodes_at_least(group: NodeGroup, said: str) -> None:
    wrong = list(with_gpus(replace(pools.config("n1"), groups=(group,)), {"n1": range(4), "n2": range(3)}))
    assert [line.startswith(said) for line in wrong] == ([True] if said else [])


@pytest.mark.parametrize(
    ("promise", "follow", "said"),
    [
        (Guarantee(gres_class="3g.40gb", count=4), Follow.QUEUE, ""),
        (
            Guarantee(gres_class="3g.40gb", count=5, account="physics"),
            Follow.QUEUE,
            "planning.guarantees: 'account physics: at least 5 of 3g.40gb' can never hold: "
            "the 2 GPUs can hold 4 slices of 3g.40gb at the most",
        ),
        (Guarantee(gres_class="3g.40gb", count=1), Follow.LAYOUT, "the 2 GPUs can hold 0 slices of 3g.40gb"),
        (Guarantee(gres_class="9g.1gb", count=1), Follow.QUEUE, ""),  # no such class: another mistake
    ],
)
def test_a_guarantee_that_the_gpus_there_could_never_keep_is_told(
    promise: Guarantee, follow: Follow, said: str
) -> None:
    config = replace(
        pools.config("n1"),
        groups=(pools.group("n1", layout={"1g.10gb": 7}),),
        planning=Planning(follow=follow, guarantees=(promise,)),
    )
    gpus = {"n1": [pools.gpu(str(nth), pools.SEVEN, index=nth) for nth in range(2)]}
    wrong = mistakes(config, SLURM, gpus, {"n1": pools.slurm_node("n1")})
    told = [line for line in wrong if "can never hold" in line]
    assert [said in line for line in told] == ([True] if said else [])
