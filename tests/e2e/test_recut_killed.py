"""Controller and agents are killed again and again while GPUs are re-cut: no slice is lost, shared or left behind.

VGPU_CHAOS_SEED=number runs what an earlier run did: which jobs, and what was killed in which order.
"""

import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.lab import commands, processes, simgpu
from slurm_plugin.lab.people import PEOPLE, ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e import chaos
from tests.e2e.live import Live, name_of_this_run
from tests.e2e.test_chaos import grants, known, settle
from tests.e2e.watch import LOOK_EVERY_S, Watch

pytestmark = pytest.mark.slurm

PLANNING = "planning: {follow: queue, batch_window_s: 0.2, hysteresis_s: 0}\n"
# What people ask for, one after the other: nothing that is cut for one of these serves the next.
MIXES = ("1g.10gb", "3g.40gb", "2g.20gb", "7g.80gb", "1g.20gb")
VICTIMS = ("controller", "agent:n1", "agent:n2")
CREATE = "nvmlGpuInstanceCreateComputeInstance"
_KNOWN = '[ -e "$folder/locks/$uuid" ] || { tell unknown; exit 9; }'  # here a slice may be younger than its lock
WORK = chaos.WORK.replace(_KNOWN, '(umask 0 && : >>"$folder/locks/$uuid")')


class Ground(chaos.Ground):
    """Slices come and go: what each job has is looked at while it runs."""

    def __init__(self, live: Live) -> None:
        super().__init__(live)
        (self.folder / "locks").chmod(0o1777)
        self.work.write_text(WORK)
        self.over = threading.Event()
        self.looks = 0  # at a grant
        self.lost: list[str] = []

    def watch(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """What a job has is there and is what it asked for, all between two looks at its grant."""
        before = self._granted()
        there = self.live.slices()
        after = self._granted()
        for whose, grant in before.items():
            if after.get(whose) != grant or not grant["slices"]:
                continue
            self.looks += 1
            profiles = [there[uuid].profile if uuid in there else "nothing" for uuid in grant["slices"]]
            if profiles != [grant["class"]] * grant["count"]:
                self.lost.append(f"{whose} has {profiles} for {grant['count']} of {grant['class']}")

    def _granted(self) -> dict[str, Any]:
        found = {}
        for node in self.live.lab.nodes:
            for job in self.live.granted(node):
                with suppress(FileNotFoundError):
                    found[f"{node} {job}"] = json.loads(self.live.grant(node, job))
        return found


@pytest.fixture
def arena() -> Iterator[Live]:
    """A lab of the test's own: four GPUs whose layouts follow the queue."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "killed")
    try:
        live = Live(commands.up(LabSpec(name=name, gpus=2, requeue_delay_s=10), base))
        ran = live.apply(live.policy() + PLANNING)
        assert ran.code == 0, ran.err
        yield live
    finally:
        commands.down(name, base)


def orders(user: str, count: int, rng: random.Random) -> list[chaos.Order]:
    """Jobs of one user: mostly of one profile, then mostly of another."""
    made = []
    for nth in range(count):
        mix = MIXES[nth * len(MIXES) // count]
        profile = mix if rng.random() < 0.8 else rng.choice(MIXES)
        kind = chaos.Kind(gres=f"vgpu:{profile}", fits=profile.__eq__)
        made.append(chaos.Order(name=f"{user}{nth}", kind=kind, seconds=round(rng.uniform(0.3, 2.0), 1)))
    return made


def rage(live: Live, strikes: int, within_s: float, rng: random.Random, hits: "Counter[str]") -> None:
    """One daemon after the other, sometimes two at once."""
    until = time.monotonic() + within_s
    for number in range(strikes):
        time.sleep(max(0.0, rng.uniform(0.2, 1.8) * (until - time.monotonic()) / (strikes - number)))
        for victim in rng.sample(VICTIMS, k=rng.choice((1, 1, 2))):
            if processes.wait_until(partial(chaos.strike, live, victim), limit_s=15.0):
                hits[victim.partition(":")[0]] += 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("jobs", "storm_s", "strikes", "end_s"),
    [
        pytest.param(40, 20.0, 10, 120.0, id="10-kills"),
        pytest.param(300, 240.0, 100, 500.0, id="100-kills", marks=pytest.mark.soak),
    ],
)
def test_nothing_is_lost_or_shared_whoever_is_killed_while_gpus_are_recut(
    arena: Live, jobs: int, storm_s: float, strikes: int, end_s: float
) -> None:
    seed = chaos.seed_of_this_run()
    print(f"VGPU_CHAOS_SEED={seed}")
    ground, began, hits = Ground(arena), time.monotonic(), Counter[str]()
    crowd, watch = chaos.Crowd(ground), Watch(arena)
    people = [
        partial(crowd.submit_all, user, orders(user, jobs // len(PEOPLE), rng), rng, storm_s)
        for user in PEOPLE
        for rng in [random.Random(f"{seed} {user}")]
    ]
    with chaos.beside(watch.run, ground.watch, over=[watch.over, ground.over]):
        with chaos.beside(*people, over=[]):
            rage(arena, strikes, storm_s, random.Random(f"{seed} storm"), hits)
        left = settle(arena, crowd, end_s)
    rows = known(arena)
    recuts = made(arena)
    print(f"jobs={len(crowd.submitted)} hits={dict(hits)} looks={watch.looks}+{ground.looks} steps={recuts}", end=" ")
    print(f"requeued={sum(row.restarts for row in rows.values())} took={time.monotonic() - began:.0f}s")
    assert not left, left
    assert {job: row.state for job, row in rows.items() if row.state != "COMPLETED"} == {}
    assert {line[1] for line in ground.told() if line[0] == "ended"} == {order.name for order in crowd.submitted}
    assert [line for line in ground.told() if line[0] not in ("began", "ended")] == []
    assert ground.lost == []
    assert watch.drained() == []
    assert watch.too_many == []
    assert min(watch.looks, ground.looks, recuts) > 0
    nothing_is_left(arena, ground)


def made(live: Live) -> int:
    """Instances that were made since the lab came up."""
    return sum(simgpu.snapshot(live.lab.sim_state(node)).calls.get(CREATE, 0) for node in live.lab.nodes)


def nothing_is_left(live: Live, ground: Ground) -> None:
    live.until(lambda: commands.status(live.lab.name, live.base).lacks == "", "the lab is ready")
    live.until(lambda: grants(live) == [], f"no grant is left but {grants(live)}")
    live.until(live.counts_are_right, "every slice is published")
    for node in live.lab.nodes:
        assert processes.jobs_of(live.lab.node_slurm_conf(node), live.lab.spool(node)) == ()
        there = simgpu.snapshot(live.lab.sim_state(node)).instances
        assert [one for one in there if len(one.compute) != 1] == []
    assert ground.held() == []
    live.until(lambda: live.vgpu("doctor").code == 0, "doctor is content")
    assert {live.node_state(node) for node in live.lab.nodes} == {"idle"}
