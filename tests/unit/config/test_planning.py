"""The `planning:` section: what it may say, how a wrong one is told, and what quiet hours mean."""

from pathlib import Path

import pytest

from slurm_plugin.config import load_pool, parse_pool
from slurm_plugin.config_planning import MAX_GUARANTEES, MAX_REACHES, quiet_hours
from slurm_plugin.errors import ConfigError
from slurm_plugin.planning import Follow, Guarantee, Order, Planning, Reach

EXAMPLE = Path(__file__).parents[3] / "configs" / "pool-queue.yaml"
NODES = "version: 1\npool: hpc\npartitions: [gpu]\nnodes:\n  - {hosts: 'n[1-2]', product: h100-80gb, count: 2}\n"
QUEUE = NODES + "planning:\n  follow: queue\n"
MON, SAT, SUN = 0, 5, 6
WEEK = 7 * 24 * 60


def test_without_it_layouts_are_what_they_say() -> None:
    pool = parse_pool(NODES)
    assert pool.planning == Planning()
    assert pool.follow(pool.groups[0]) is Follow.LAYOUT


def test_gpus_are_reset_only_where_it_is_said() -> None:
    assert not parse_pool(QUEUE).planning.reset_gpus
    assert parse_pool(QUEUE + "  reset_gpus: true\n").planning.reset_gpus
    with pytest.raises(ConfigError, match="reset_gpus"):
        parse_pool(QUEUE + "  reset_gpus: 1\n")


def test_example_shows_every_key() -> None:
    pool = load_pool(EXAMPLE)
    planning = pool.planning
    assert [pool.follow(group) for group in pool.groups] == [Follow.QUEUE, Follow.LAYOUT]
    assert planning.order is Order.PRIORITY
    assert [one.text for one in planning.guarantees] == [
        "account physics: at least 4 of 3g.40gb",
        "class small: never fewer than 7 idle",
    ]
    assert (planning.changing_of_node, planning.changing_of_pool) == (2, 32)
    assert planning.reaches == {"small": Reach(products=("h100-80gb",), hosts=frozenset({"n1", "n2"}))}
    assert len(planning.quiet) == 2


def test_three_forms_of_a_guarantee_and_several_of_one_subject() -> None:
    text = (
        QUEUE + "  guarantees:\n    account a: [at least 1 of 1/4, at least 2 of 20gb]\n    class 1g.10gb: at least 3\n"
    )
    assert parse_pool(text).planning.guarantees == (
        Guarantee(account="a", gres_class="1/4", count=1),
        Guarantee(account="a", gres_class="20gb", count=2),
        Guarantee(gres_class="1g.10gb", count=3),
    )


def test_guarantee_may_name_an_alias_or_a_class_of_the_admins() -> None:
    named = "classes: {small: {memory: 10gb}}\naliases: {tiny: 1g.10gb}\n"
    text = QUEUE + "  guarantees: {class small: at least 1, class tiny: at least 1 idle}\n" + named
    assert [one.gres_class for one in parse_pool(text).planning.guarantees] == ["small", "tiny"]


def test_what_the_pool_holds_is_not_guessed_when_the_file_does_not_say() -> None:
    text = QUEUE.replace(", count: 2", "") + "  guarantees: {class 7g.80gb: at least 900}\n"
    assert parse_pool(text).planning.guarantees[0].count == 900


WRONG = {
    "misspelt": ("  ordr: priority\n", r"pool\.yaml:8: unknown key 'planning\.ordr'; did you mean 'order'\?"),
    "misspelt inside": (
        "  changing: {nodes: 1}\n",
        r"pool\.yaml:8: unknown key 'planning\.changing\.nodes'; did you mean 'node'\?",
    ),
    "misspelt in a class": (
        "  classes:\n    1g.10gb: {product: [h100-80gb]}\n",
        r"pool\.yaml:9: unknown key 'planning\.classes\.1g\.10gb\.product'; did you mean 'products'\?",
    ),
    "order": ("  order: fifo\n", r"pool\.yaml:8: planning\.order: must be 'priority' or 'first_come'"),
    "none may change": ("  changing: {pool: 0}\n", r"pool\.yaml:8: planning\.changing\.pool"),
    "no window": ("  batch_window_s: -1\n", r"pool\.yaml:8: planning\.batch_window_s"),
    "never": ("  hysteresis_s: .inf\n", r"pool\.yaml:8: planning\.hysteresis_s"),
    "subject": (
        "  guarantees: {acount physics: at least 4 of 3g.40gb}\n",
        r"pool\.yaml:8: planning\.guarantees: 'acount physics' is neither .*; did you mean 'account physics'\?",
    ),
    "subject of nothing": ("  guarantees: {physics: at least 4}\n", "is neither `account NAME` nor `class CLASS`"),
    "promise": (
        "  guarantees:\n    class 1g.10gb: at most 4\n",
        r"pool\.yaml:9: planning\.guarantees: 'at most 4' is not understood: write `account NAME: at least N of",
    ),
    "none": ("  guarantees: {class 1g.10gb: at least 0}\n", "0 is not between 1 and 1000000"),
    "promise that is no text": ("  guarantees: {class 1g.10gb: 4}\n", r"pool\.yaml:8: planning\.guarantees\.class"),
    "account with a blank": ("  guarantees: {'account a b': at least 4 of 1g.10gb}\n", "is neither `account NAME`"),
    "account that is none": ("  guarantees: {account ;x: at least 4 of 1g.10gb}\n", "';x' is no name of an account"),
    "class of a guarantee": (
        "  guarantees:\n    account a: at least 4 of 3g.40bg\n",
        r"pool\.yaml:9: planning\.guarantees\.account a: .*3g\.40bg",
    ),
    "more than fit": (
        "  guarantees:\n    account a: at least 9 of 3g.40gb\n",
        r"pool\.yaml:9: 'account a: at least 9 of 3g\.40gb' can never hold: the 4 GPUs can hold 8 slices of 3g\.40gb",
    ),
    "more than fit together": (
        "  guarantees:\n    class 7g.80gb: at least 3\n    class 3g.40gb: at least 3\n",
        r"pool\.yaml:10: 'class 3g\.40gb: at least 3' can never hold: with those before it, it needs the memory of "
        r"4\.5 GPUs, and the pool has 4",
    ),
    "more than fit where it may": (
        "  guarantees: {class 7g.80gb: at least 3}\n  classes: {7g.80gb: {nodes: n1}}\n",
        "can never hold: the 2 GPUs that planning.classes lets it use can hold 2 slices of 7g.80gb",
    ),
    "nowhere": (
        "  guarantees: {class 1g.10gb: at least 1}\n  classes: {1g.10gb: {products: [a100-40gb]}}\n",
        "can never hold: the 0 GPUs",
    ),
    "product": ("  classes:\n    1g.10gb: {products: [h1000]}\n", r"pool\.yaml:9: no GPU product 'h1000'"),
    "node": (
        "  classes: {1g.10gb: {nodes: n3}}\n",
        r"pool\.yaml:8: node n3 is not under nodes:; did you mean n[12]\?",
    ),
    "hosts": ("  classes: {1g.10gb: {nodes: 'n[1-'}}\n", r"pool\.yaml:8: planning\.classes\.1g\.10gb\.nodes"),
    "class that may": ("  classes: {1g.11gb: {nodes: n1}}\n", r"pool\.yaml:8: planning\.classes\.1g\.11gb: "),
    "more guarantees than it may": (
        f"  guarantees:\n    class 1g.10gb: [{', '.join(['at least 1'] * (MAX_GUARANTEES + 1))}]\n",
        r"pool\.yaml:9: planning\.guarantees: more than 100 in all",
    ),
    "more classes than it may": (
        "  classes:\n" + "".join(f"    {nth}gb: {{nodes: n1}}\n" for nth in range(MAX_REACHES + 1)),
        r"pool\.yaml:8: planning\.classes: more than 100 classes",
    ),
    "more hosts than it may": (
        "  classes:\n" + "".join(f"    {nth}gb: {{nodes: 'n[1-20000]'}}\n" for nth in range(6)),
        r"pool\.yaml:8: planning\.classes: they name more than 100000 hosts in all",
    ),
    "day": ("  quiet: [mno 08:00-09:00]\n", r"pool\.yaml:8: planning\.quiet\.0: 'mno' is no day; did you mean mon\?"),
    "hour": ("  quiet: ['08:00-25:00']\n", "25:00 is no time of day"),
    "minute": ("  quiet: ['08:60-09:00']\n", "08:60 is no time of day"),
    "no hours": ("  quiet: [always]\n", r"'always' is not `\[DAYS\] HH:MM-HH:MM`"),
    "sexagesimal": ("  quiet: [8:00]\n", r"pool\.yaml:8: planning\.quiet\.0: must be a text: put it in quotes"),
    "no time at all": ("  quiet: ['08:00-08:00']\n", "begins and ends at once"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_section_is_told_with_its_line(name: str) -> None:
    text, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        parse_pool(QUEUE + text)


def test_guarantee_that_nothing_would_keep_is_refused() -> None:
    promise = "  guarantees: {class 1g.10gb: at least 1}\n"
    with pytest.raises(ConfigError, match=r"pool\.yaml:7: no node follows the queue"):
        parse_pool(NODES + "planning:\n" + promise)
    fixed = (QUEUE + promise).replace("count: 2}", "count: 2, follow: layout}")
    with pytest.raises(ConfigError, match="no node follows the queue"):
        parse_pool(fixed)
    assert parse_pool(NODES.replace("count: 2}", "count: 2, follow: queue}") + "planning:\n" + promise).groups


def test_nodes_that_keep_their_layout_count_for_what_that_has() -> None:
    cut = NODES + "  - {hosts: n3, product: h100-80gb, count: 2, follow: layout, layout: {3g.40gb: 1, 1g.10gb: 4}}\n"
    text = cut + "planning:\n  follow: queue\n  guarantees: {class 3g.40gb: at least 11}\n"
    with pytest.raises(ConfigError, match="the 6 GPUs can hold 10 slices"):
        parse_pool(text)
    assert parse_pool(text.replace("11", "10")).planning.guarantees


@pytest.mark.parametrize(
    ("text", "at", "left"),
    [
        ("08:00-18:00", (MON, 8 * 60), 600),
        ("08:00-18:00", (MON, 8 * 60 - 1), 0),
        ("08:00-18:00", (SUN, 18 * 60), 0),
        ("mon-fri 8:00-18:00", (SAT, 12 * 60), 0),
        ("22:00-06:00", (MON, 5 * 60), 60),
        ("sun 22:00-06:00", (MON, 5 * 60), 60),
        ("sun 22:00-06:00", (SUN, 5 * 60), 0),
        ("fri-mon 00:00-24:00", (SUN, 0), 24 * 60),
        ("sat,tue 0:00-24:00", (SAT, 60), 23 * 60),
        ("MON 08:00 - 09:00", (MON, 8 * 60), 60),
    ],
)
def test_quiet_hours(text: str, at: tuple[int, int], left: int) -> None:
    assert quiet_hours(text).left(*at) == left


def test_quiet_hours_that_meet_end_with_the_last() -> None:
    quiet = (quiet_hours("sun 22:00-06:00"), quiet_hours("mon 05:30-08:00"), quiet_hours("tue 08:00-09:00"))
    assert Planning(quiet=quiet).quiet_left(SUN, 23 * 60) == 9 * 60
    assert Planning(quiet=quiet).quiet_left(MON, 8 * 60) == 0
    assert Planning(quiet=(quiet_hours("00:00-24:00"),)).quiet_left(MON, 0) == WEEK
    assert Planning().quiet_left(MON, 0) == 0
