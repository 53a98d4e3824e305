"""Where a job goes, and what its user is told of each pool."""

from dataclasses import replace
from typing import Any

from federation.model.messages import Room
from federation.model.spec import Batch, Input, JobSpec
from federation.policy.choose import LASTING, Ask, Choice, Pool, Rules, choose
from slurm_plugin.catalogue import Catalogue, Class, Kind, NodeFacts, render, shapes

SPEC = JobSpec(user="ann", account="lab", time_limit_s=3600)
ROOM = Room(pool="batch", free_jobs=10, free_cpus=8)
HOME = Pool(site="edge", room=ROOM, local=True)
CLOUD = Pool(site="cloud", room=ROOM)


def ask(spec: JobSpec = SPEC, *, spent: float = 0.0) -> Ask:
    return Ask(spec=spec, spent=spent, now=1000.0)


def chosen(choice: Choice) -> str:
    return choice.pool.name if choice.pool else ""


def why(pool: Pool, spec: JobSpec = SPEC, rules: Rules | None = None, **more: Any) -> str:
    choice = choose(replace(ask(spec), **more), [pool], rules or Rules())
    assert choice.pool is None
    return dict(choice.reasons)[pool.name]


def slices(free: int, made: dict[str, int] | None = None) -> Room:
    shape, nodes = shapes({"n1": NodeFacts(cpus=8, memory_mib=1000, most={"m20": 4}, made=made)})
    one = Class(name="m20", kind=Kind.MEMORY, param=20, weight=2, profiles=("1g.20gb",))
    text = render(Catalogue(pool="hpc", partitions=(("gpu", "wait"),), classes=(one,), shapes=shape, nodes=nodes))
    return replace(ROOM, catalogue=text, slices=(("m20", free),), starts_in_s=500.0)


def test_home_first_when_it_has_room() -> None:
    assert chosen(choose(ask(), [CLOUD, HOME], Rules())) == "edge/batch"


def test_elsewhere_when_home_would_start_it_much_later() -> None:
    busy = replace(HOME, room=replace(ROOM, free_cpus=0, starts_in_s=600.0))
    choice = choose(ask(), [busy, CLOUD], Rules())
    assert chosen(choice) == "cloud/batch"
    assert dict(choice.reasons) == {
        "edge/batch": "fits: start in 600 s, 0 s to move, price 0.00; 0 CPUs are free now",
        "cloud/batch": "chosen: start in 0 s, 0 s to move, price 0.00",
    }


def test_what_is_not_free_now_is_never_taken_to_start_at_once() -> None:
    """Whatever its pool tells: home with 3 of 8 CPUs free, and an idle cloud."""
    wants = replace(SPEC, cpus=4)
    busy = replace(HOME, room=replace(ROOM, free_cpus=3))
    choice = choose(ask(wants), [busy, CLOUD], Rules())
    assert chosen(choice) == "cloud/batch"
    until = "start in 3600 s, 0 s to move, price 0.00; 3 CPUs are free now, and until when is not told"
    assert dict(choice.reasons)["edge/batch"] == f"fits: {until}"
    full = replace(CLOUD, site="full", room=replace(slices(0), starts_in_s=0.0))
    assert (
        ": start in 3600 s" in dict(choose(ask(replace(SPEC, gres="vgpu:20gb")), [full], Rules()).reasons)["full/batch"]
    )
    assert chosen(choose(ask(wants), [busy], Rules())) == "edge/batch"  # there is nothing better


def test_what_a_choice_leaves_free_is_told_with_it() -> None:
    room = choose(ask(replace(SPEC, cpus=6)), [CLOUD], Rules()).left
    assert room == replace(ROOM, free_cpus=2)
    there = replace(CLOUD, room=slices(3))
    room = choose(ask(replace(SPEC, gres="vgpu:20gb:2", cpus=2)), [there], Rules()).left
    assert room is not None
    assert (room.slices, room.free_cpus) == ((("m20", 1),), 6)
    assert choose(ask(), [replace(CLOUD, linked=False)], Rules()).left is None


def test_what_is_not_free_now_is_told() -> None:
    for free, lacks in ((1, ""), (0, "; 0 slices of m20 are free now")):
        choice = choose(ask(replace(SPEC, gres="vgpu:20gb")), [replace(CLOUD, room=slices(free))], Rules())
        (reason,) = dict(choice.reasons).values()
        assert reason == f"chosen: start in {0 if free else 500} s, 0 s to move, price 0.00{lacks}"


def test_the_time_to_move_its_data_counts() -> None:
    data = replace(SPEC, inputs=(Input(path=b"x", size=10**10, sha256=b""),))
    near = replace(CLOUD, site="near", bytes_per_s=1e9)
    assert chosen(choose(ask(data), [CLOUD, near], Rules())) == "near/batch"


def test_money_counts_at_the_site_s_rate() -> None:
    dear = replace(CLOUD, site="dear", room=replace(ROOM, price_per_hour=2.0))
    slow = replace(CLOUD, site="slow", room=replace(ROOM, free_cpus=0, starts_in_s=1000.0))
    assert chosen(choose(ask(), [dear, slow], Rules(seconds_per_money=600.0))) == "slow/batch"
    assert chosen(choose(ask(), [dear, slow], Rules(seconds_per_money=400.0))) == "dear/batch"


def test_a_deadline_goes_before_the_price() -> None:
    urgent = replace(SPEC, deadline_at=1000.0 + 3600 + 100)
    dear = replace(CLOUD, site="dear", room=replace(ROOM, price_per_hour=20.0))
    slow = replace(CLOUD, site="slow", room=replace(ROOM, free_cpus=0, starts_in_s=1000.0))
    assert chosen(choose(ask(urgent), [slow, dear], Rules())) == "dear/batch"
    assert "after its deadline" in dict(choose(ask(urgent), [slow], Rules()).reasons)["slow/batch"]


def test_a_budget_is_never_passed() -> None:
    dear = replace(CLOUD, room=replace(ROOM, price_per_hour=2.0))
    rules = Rules(budget_per_day={"lab": 10.0})
    assert choose(ask(spent=8.0), [dear], rules).cost == 2.0
    assert why(dear, rules=rules, spent=8.1) == "over budget: 2.00 more than the 1.90 left of today's 10.00"
    assert chosen(choose(ask(spent=99.0), [CLOUD], rules)) == "cloud/batch"  # it costs nothing


def test_every_account_that_has_no_budget_of_its_own_may_have_the_same_each() -> None:
    dear = replace(CLOUD, room=replace(ROOM, price_per_hour=2.0))
    rules = Rules(budget_per_day={"*": 1.0, "lab": 10.0})
    assert choose(ask(), [dear], rules).cost == 2.0
    assert why(dear, replace(SPEC, account="other"), rules).startswith("over budget: 2.00 more than the 1.00 left")


def test_a_slice_pays_its_part_of_a_gpu_s_price_or_what_every_slice_costs() -> None:
    wants = replace(SPEC, gres="vgpu:20gb:2", cpus=4)
    flat = replace(CLOUD, room=replace(slices(4), price_per_hour=1.0))
    assert choose(ask(wants), [flat], Rules()).cost == 2.0
    by_gpu = replace(CLOUD, room=replace(slices(4), price_per_hour=1.0, gpu_price_per_hour=4.0))
    assert choose(ask(wants), [by_gpu], Rules()).cost == 2 * 4.0 * 2 / 8


def test_where_it_goes_or_why_it_waits_is_one_line() -> None:
    away = replace(CLOUD, linked=False)
    assert choose(ask(), [CLOUD], Rules()).why == "sent to cloud/batch"
    assert choose(ask(), [away], Rules()).why == "no pool fits now: cloud/batch: no link now"
    assert choose(ask(), [away, away], Rules()).why == "none of 2 pools fits now: fed explain"
    assert choose(ask(), [], Rules()).why == "no pool is known"
    there = replace(SPEC, pin="cloud")
    assert choose(ask(there), [HOME, away], Rules()).why == "no pool fits now: cloud/batch: no link now"


def test_what_no_waiting_changes_is_told_apart() -> None:
    slurms = replace(SPEC, batch=Batch(job_id=1))
    lasting = [
        why(CLOUD, rules=Rules(allow={"lab": ("edge",)})),
        why(CLOUD, rules=Rules(deny={"lab": ("cloud",)})),
        why(replace(CLOUD, room=replace(ROOM, longest_s=60))),
        why(CLOUD, slurms),
    ]
    assert all(one.startswith(LASTING) for one in lasting), lasting
    others = [why(replace(CLOUD, linked=False)), why(replace(CLOUD, sent=10)), why(CLOUD, replace(SPEC, pin="edge"))]
    assert not any(one.startswith(LASTING) for one in others), others


def test_each_reason_why_not() -> None:
    assert why(CLOUD, replace(SPEC, pin="edge")) == "the job is pinned to edge"
    assert why(CLOUD, rules=Rules(allow={"lab": ("edge",)})) == "account lab may not go there"
    assert why(CLOUD, rules=Rules(deny={"lab": ("cloud/batch",)})) == "account lab is denied there"
    assert why(CLOUD, avoid=(("cloud/batch", "no such QOS"),)) == "it refused this job: no such QOS"
    assert why(replace(CLOUD, linked=False)) == "no link now"
    assert why(replace(CLOUD, cools_for_s=12.0)) == "left alone for 12 s after failures"
    assert why(replace(CLOUD, sent=10)) == "full: it takes no more jobs now"
    assert why(replace(CLOUD, room=replace(ROOM, free_jobs=0, why="sinfo: no answer"))) == "sinfo: no answer"
    assert why(replace(CLOUD, room=replace(ROOM, longest_s=60))) == "its longest time limit is 60 s"
    assert why(CLOUD, replace(SPEC, gres="vgpu:20gb")) == "it has no slices"
    broken = replace(CLOUD, room=replace(ROOM, catalogue="?"))
    assert why(broken, replace(SPEC, gres="vgpu:20gb")) == "its catalogue can't be read"
    bomb = slices(1).catalogue.replace("node n1 1", "node n[1-5000] 1")
    huge = replace(CLOUD, room=replace(ROOM, catalogue=bomb))
    assert why(huge, replace(SPEC, gres="vgpu:20gb")) == "its catalogue can't be read"


def test_a_pin_may_name_a_site_or_a_pool() -> None:
    for pin in ("cloud", "cloud/batch"):
        assert chosen(choose(ask(replace(SPEC, pin=pin)), [HOME, CLOUD], Rules())) == "cloud/batch"


def test_what_we_sent_there_counts_before_it_says_so() -> None:
    assert chosen(choose(ask(), [replace(CLOUD, sent=9)], Rules())) == "cloud/batch"
    assert chosen(choose(ask(), [replace(CLOUD, sent=10)], Rules())) == ""


def test_a_request_for_slices_is_matched_against_each_pool_s_catalogue() -> None:
    wants = replace(SPEC, gres="vgpu:20gb:2")
    some, none = replace(CLOUD, room=slices(2)), replace(CLOUD, site="full", room=slices(1))
    choice = choose(ask(wants), [none, some], Rules())
    assert chosen(choice) == "cloud/batch"
    assert dict(choice.reasons)["full/batch"].startswith("fits: start in 500 s")


def test_what_can_never_run_there_is_told_as_job_submit_would_tell_it() -> None:
    there = replace(CLOUD, room=slices(9))
    assert why(there, replace(SPEC, gres="vgpu:80gb")).startswith("vgpu: no slice of this pool has 80 GB; did you mean")
    assert "no node can hold 5 slices" in why(there, replace(SPEC, gres="vgpu:20gb:5"))
    assert "has 16 CPUs; the most is 8" in why(there, replace(SPEC, gres="vgpu:20gb", cpus=16))
    assert "1024 MiB of memory" in why(there, replace(SPEC, gres="vgpu:20gb", memory_mib=1024))


def test_slices_that_no_layout_of_today_makes_are_not_waited_for_there() -> None:
    there = replace(CLOUD, room=slices(0, made={"m20": 1}))
    assert chosen(choose(ask(replace(SPEC, gres="vgpu:20gb")), [there], Rules())) == "cloud/batch"
    assert why(there, replace(SPEC, gres="vgpu:20gb:2")) == "no layout there makes vgpu:m20:2 now"


def test_other_resources_are_asked_for_where_a_user_says_that_they_are() -> None:
    tapes = replace(SPEC, gres="tape:1")
    assert why(CLOUD, tapes) == "what it has of tape:1 is not known: name a site with --to"
    assert chosen(choose(ask(replace(tapes, pin="cloud")), [CLOUD], Rules())) == "cloud/batch"


def test_a_pool_that_would_not_understand_a_job_of_slurms_gets_none() -> None:
    batch = replace(SPEC, batch=Batch(joined=True))
    assert why(CLOUD, batch) == "its daemon is too old for jobs of Slurm's"
    new = replace(CLOUD, room=replace(CLOUD.room, batch=True))
    assert chosen(choose(ask(batch), [HOME, new], Rules())) == "cloud/batch"
