"""The jobs that are said to be in the way: when they end there is room, and nobody else ends sooner in their place."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.controller.blockers import Ground, placeable, room
from slurm_plugin.controller.demand import demands
from slurm_plugin.controller.state import NodeState, State
from slurm_plugin.explanation import Blocker
from slurm_plugin.mig.layouts import all_layouts
from slurm_plugin.mig.products import product_named
from slurm_plugin.planning import Follow, Planning
from tests.unit.controller import pools
from tests.unit.controller.pools import gpu, grant, node, pending, running

LAYOUTS = sorted(all_layouts(product_named("h100-80gb").profiles))
NEVER = 1 << 40


def world(layouts: list[int], busy: list[bool], limits: list[int], gres_class: str) -> State:
    """One node; every busy slice has a job of its own, with an end or none."""
    gpus = [gpu(str(nth), LAYOUTS[which % len(LAYOUTS)], index=nth) for nth, which in enumerate(layouts)]
    pieces = [(one.uuid, one.profile) for each in gpus for one in each.instances]
    taken = [piece for piece, is_busy in zip(pieces, busy * len(pieces), strict=False) if is_busy]
    grants = [grant(100 + nth, profile, uuid) for nth, (uuid, profile) in enumerate(taken)]
    jobs = tuple(
        replace(running(one.run.job_id, one.gres_class), limit_s=limits[nth % len(limits)])
        for nth, one in enumerate(grants)
    )
    here = node("n1", *gpus, grants=grants)
    config = replace(pools.config("n1"), groups=(here.group,), planning=Planning(follow=Follow.QUEUE))
    return State(
        config=config,
        serving=pools.serving(),
        nodes={"n1": here},
        jobs=(*jobs, pending(5, gres_class)),
        now=1_000.0,
    )


def room_for(state: State, gone: set[int]) -> int:
    """How many slices of the class fit when these jobs are gone."""
    one = state.nodes["n1"]
    view = replace(one.view, holder={s: g for s, g in one.view.holder.items() if g.run.job_id not in gone})
    (demand,) = demands(state)
    profiles = state.serving.profiles[demand.gres_class]
    without: NodeState = replace(one, view=view)
    return sum(placeable(each, without, profiles) for each in one.view.gpus)


def told(state: State) -> tuple[Blocker, ...]:
    (demand,) = demands(state)
    ground = Ground.of(state, demand)
    return room(state, ground, ground.ways(state))


@given(
    layouts=st.lists(st.integers(0, len(LAYOUTS) - 1), min_size=1, max_size=2),
    busy=st.lists(st.booleans(), min_size=1, max_size=6),
    limits=st.lists(st.sampled_from([0, 60, 120, 180]), min_size=1, max_size=5),
    gres_class=st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "m40", "7g.80gb", "q2"]),
)
def test_when_they_end_there_is_room_and_no_other_jobs_make_it_sooner(
    layouts: list[int], busy: list[bool], limits: list[int], gres_class: str
) -> None:
    state = world(layouts, busy, limits, gres_class)
    blockers = told(state)
    if room_for(state, set()):
        assert not blockers, "it needs no end of a job"
        return
    assert blockers, "on empty GPUs there is room for every class"
    assert room_for(state, {one.job_id for one in blockers})
    last = max(one.ends_at or NEVER for one in blockers)
    sooner = {job.job_id for job in state.jobs if job.on_nodes and (job.ends_at or NEVER) < last}
    assert not room_for(state, sooner)
