"""What no pool could ever run is told apart from what waits, and with the nearest request that works."""

from dataclasses import replace
from typing import Any

import pytest

from federation.cli.amounts import seconds
from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.policy.choose import Ask, Pool, Rules, choose
from federation.policy.never import Never, clock, never
from tests.unit.federation.policy.test_choose import slices

SPEC = JobSpec(user="ann", account="lab")
ROOM = Room(pool="batch", free_jobs=0, free_cpus=0, longest_s=3600, most_cpus=8, most_memory_mib=4000, complete=True)
HPC = Pool(site="hpc", room=ROOM)
SLICES = replace(slices(0), complete=True)
GPU = Pool(site="hpc", room=replace(SLICES, pool="gpu", most_cpus=8))


def said(spec: JobSpec, *pools: Pool, rules: Rules | None = None, **refused: str) -> Never:
    found = never(spec, pools, rules or Rules(), {f"hpc/{name}": why for name, why in refused.items()})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asks", "why", "instead"),
    [
        ({"cpus": 9}, "a job there has 8 CPUs at most", "--cpus 8"),
        ({"memory_mib": 4001}, "a job there has 4000 MiB of memory at most", "--mem 4000M"),
        ({"time_limit_s": 3601}, "its longest time limit is 01:00:00", "--time 01:00:00"),
        ({"gres": "vgpu:20gb"}, "it has no slices", "no --gres"),
        ({"gres": "tape:1"}, "what it has of tape:1 is not known", "--to hpc"),
    ],
)
def test_what_is_more_than_there_is_names_the_most_there_is(asks: dict[str, Any], why: str, instead: str) -> None:
    found = said(replace(SPEC, **asks), HPC)
    assert found.why == f"no pool can run this: hpc/batch: {why}"
    assert found.instead == f"hpc/batch takes it with {instead}"


@pytest.mark.parametrize(
    "asks",
    [
        {},
        {"cpus": 8, "memory_mib": 4000, "time_limit_s": 3600},
        {"gres": "tape:1", "pin": "hpc"},
        {"gres": "tape:1", "pin": "hpc/batch"},
    ],
)
def test_who_is_full_away_or_cools_down_may_run_it_later(asks: dict[str, Any]) -> None:
    spec = replace(SPEC, **asks)
    for pool in (HPC, replace(HPC, linked=False), replace(HPC, cools_for_s=60.0)):
        assert never(spec, [pool], Rules(budget_per_day={"*": 0.0})) is None


@pytest.mark.parametrize("asks", [{"cpus": 10_000}, {"memory_mib": 1 << 30}, {"time_limit_s": 1 << 30}])
def test_what_a_pool_does_not_tell_is_no_limit(asks: dict[str, Any]) -> None:
    untold = Pool(site="old", room=Room(pool="batch", free_jobs=1, free_cpus=1))
    for more in ({}, {"gres": "vgpu:20gb"}):
        assert never(replace(SPEC, **asks | more), [HPC, untold], Rules()) is None


def test_slices_that_the_catalogue_never_has_are_told_from_those_that_are_not_cut_now() -> None:
    assert never(replace(SPEC, gres="vgpu:20gb:4"), [GPU], Rules()) is None
    uncut = Pool(site="hpc", room=replace(slices(0, made={"m20": 0}), complete=True))
    spec = replace(SPEC, gres="vgpu:20gb")
    assert never(spec, [uncut], Rules()) is None
    assert (
        choose(Ask(spec=spec, now=0.0), [replace(uncut, room=replace(uncut.room, free_jobs=1))], Rules()).pool is None
    )
    assert "can hold 5 slices of class m20" in said(replace(SPEC, gres="vgpu:20gb:5"), GPU).why
    assert "did you mean 20gb?" in said(replace(SPEC, gres="vgpu:90gb"), GPU).why
    guessed = replace(GPU, room=replace(GPU.room, complete=False))
    assert never(replace(SPEC, gres="vgpu:20gb:5"), [guessed], Rules()) is None


def test_the_pool_that_lacks_least_is_the_nearest() -> None:
    small = Pool(site="near", room=replace(ROOM, most_cpus=2, longest_s=60))
    found = said(replace(SPEC, cpus=16, time_limit_s=600), small, HPC)
    assert found.instead == "hpc/batch takes it with --cpus 8"
    both = said(replace(SPEC, cpus=16, gres="vgpu:20gb"), GPU)
    assert both.instead == "hpc/gpu takes it with --cpus 8"
    assert said(replace(SPEC, cpus=16, time_limit_s=7200), HPC).instead.endswith("--time 01:00:00, --cpus 8")


def test_one_that_could_is_enough() -> None:
    assert never(replace(SPEC, gres="vgpu:20gb"), [HPC, GPU], Rules()) is None


def test_accounts_and_what_pools_said_themselves_count() -> None:
    found = said(SPEC, HPC, rules=Rules(deny={"lab": ("hpc",)}))
    assert found.why.endswith("account lab is denied there")
    assert found.instead == "hpc/batch takes it with another --account"
    nobody = said(SPEC, HPC, batch="user ann of edge is nobody here")
    assert nobody == Never(why="no pool can run this: hpc/batch: user ann of edge is nobody here", instead="")


def test_no_pools_at_all_and_many() -> None:
    assert said(SPEC) == Never(why="there is no pool that it may go to", instead="")
    many = [Pool(site=f"s{nth}", room=ROOM) for nth in range(5)]
    assert said(replace(SPEC, cpus=9), *many).why.endswith("; and so with 2 more")


@pytest.mark.parametrize("limit_s", [1, 59, 60, 3600, 86_399, 86_400, 90_061, 8_640_000])
def test_a_time_is_told_as_it_can_be_asked_for(limit_s: int) -> None:
    assert seconds(clock(limit_s)) == limit_s
