"""What is remembered of the pool's GPUs saves work, and changes no decision."""

import random
from dataclasses import replace
from typing import Any

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.look import Here, look
from slurm_plugin.controller.sights import Sights, model_name
from slurm_plugin.controller.state import Decision, NodeState, NodeView, State
from slurm_plugin.controller.wants import OfferNode
from slurm_plugin.model import Gpu, Grant
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.pool import NodeGroup, PoolConfig, Share
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN, gpu
from tests.unit.controller.test_recut import promise
from tests.unit.controller.world import World

CLASSES = ("1g.10gb", "3g.40gb", "7g.80gb", "m20", "m40")
LAYOUTS = (SEVEN, MIXED, (("3g.40gb", 0), ("3g.40gb", 4)))


class Pool(World):
    """A controller that runs for long: its pool.yaml and what its agents told stay the same objects."""

    def __init__(self, rng: random.Random, nodes: int) -> None:
        names = [f"n{nth}" for nth in range(nodes)]
        shares = (Share(layout={"3g.40gb": 2}, share=60), Share(layout={"1g.10gb": 7}, share=40))
        gpus = {name: [gpu(f"{name}-{nth}", rng.choice(LAYOUTS), index=nth) for nth in range(2)] for name in names}
        super().__init__(gpus, replace(pools.group(*names), shares=shares))
        planning = Planning(follow=Follow.QUEUE, batch_window_s=0.0, hysteresis_s=2.0)
        self.config: PoolConfig = replace(pools.config(*names), planning=planning)
        self.told: dict[str, tuple[tuple[Gpu, ...], NodeGroup, dict[str, Grant], NodeView]] = {}

    def view(self, name: str) -> NodeView:
        """The object of the last time, if the agent would tell the same."""
        view = self._view(name)
        if name in self.told and self.told[name][:3] == (view.gpus, self.group, view.holder):
            return self.told[name][3]
        self.told[name] = (view.gpus, self.group, dict(view.holder), view)
        return view

    def state(self, sights: Sights) -> State:
        nodes = {
            name: NodeState(name=name, group=self.group, view=self.view(name), slurm=self.slurm[name])
            for name in self.gpus
        }
        return State(
            config=self.config,
            serving=pools.serving(),
            nodes=nodes,
            jobs=self.queue(),
            present=self.present,
            assigned=self.assigned,
            now=self.now,
            recuts=replace(self.recuts, sights=sights),
            promises=self.promises,
            held_gpus=self.more.get("held", frozenset()),
        )

    def goes_on(self, rng: random.Random) -> None:
        """Something happens."""
        self.now += 1.0
        for _ in range(rng.randrange(3)):
            self.submit(rng.choice(CLASSES), rng.choice((1, 1, 2)), priority=rng.randrange(9))
        for job in [job for job in self.jobs if rng.random() < 0.3]:
            self.end(job)
        for node, job in [at for at in self.grants if at[1] in self.completing and rng.random() < 0.8]:
            self.release(node, job)
        self.schedule()
        for job, run in list(self.jobs.items()):
            for node in run.on_nodes:
                if (node, job) not in self.grants and rng.random() < 0.8:
                    self.bind(job, node)
        if rng.random() < 0.1:
            name = rng.choice(sorted(self.slurm))
            drained = "DRAIN" in self.slurm[name].state
            self.slurm[name] = replace(self.slurm[name], state="IDLE" if drained else "IDLE+DRAIN")
        if rng.random() < 0.1:
            self.config = replace(self.config, planning=replace(self.config.planning, hysteresis_s=rng.random()))
        uuids = [one.uuid for gpus in self.gpus.values() for one in gpus]
        self.more["held"] = frozenset(rng.sample(uuids, rng.choice((0, 0, 1))))


def told(decision: Decision) -> Decision:
    """All but the last question: states that nobody is in may stand in it."""
    return replace(decision, recuts=replace(decision.recuts, vain=None))


@pytest.mark.parametrize("seed", range(4))
def test_a_decision_is_the_same_as_without_memory(seed: int) -> None:
    rng = random.Random(seed)
    pool, sights = Pool(rng, 5), Sights()
    if seed % 2:
        pool.promises = (promise("3g.40gb", 2, idle=True),)
    planned = 0
    for _ in range(40):
        pool.goes_on(rng)
        decision = decide(pool.state(sights))
        assert told(decision) == told(decide(pool.state(Sights())))
        planned += len(decision.recuts.targets)
        pool.carry_out(decision)
    assert planned


def test_only_a_node_that_changed_is_looked_at_again() -> None:
    pool, sights = Pool(random.Random(1), 6), Sights()

    def looked_at(**more: Any) -> set[str]:
        state = replace(pool.state(sights), **more)
        here = {n: Here(state=node, offer=OfferNode(name=n), reserved={}) for n, node in state.nodes.items()}
        before = dict(sights.nodes)
        look(state, here, settled=True)
        return {name for name, sight in sights.nodes.items() if before.get(name) is not sight}

    assert looked_at() == set(pool.gpus)
    assert looked_at() == set()
    pool.gpus["n3"] = [gpu("n3-0", ()), gpu("n3-1", (), index=1)]
    assert looked_at() == {"n3"}
    held = frozenset({"GPU-n4-1"})
    assert looked_at(held_gpus=held) == looked_at(held_gpus=held) == {"n4"}
    assert looked_at() == {"n4"}
    assert looked_at() == set()
    assert looked_at(assigned={"GPU-n0-0": 0}) == set(pool.gpus)


def test_a_model_is_told_by_what_its_driver_answers_and_not_by_who_came_first() -> None:
    profiles = pools.profiles()
    assert model_name("H100", profiles) == model_name("H100", tuple(reversed(profiles)))
    assert model_name("H100", profiles) != model_name("H100", profiles[:-1])
