"""Classes of pools of one model, of several, and of an admin's own."""

from dataclasses import replace

import pytest

from slurm_plugin.catalogue import Catalogue, Class, Kind, parse, render
from slurm_plugin.classes import NamedClass, build, check_aliases, class_named, most, named_class
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.geometry import Shapes, memory_gb
from slurm_plugin.mig.layouts import all_layouts, remaining
from slurm_plugin.mig.products import load_products, product_named
from tests.cases.pool import pool

H100 = product_named("h100-80gb").profiles


def shapes_of(name: str) -> Shapes:
    return product_named(name).profiles


def by_name(*products: str, named: dict[str, NamedClass] | None = None) -> dict[str, Class]:
    return {one.name: one for one in build({name: shapes_of(name) for name in products}, named)}


def test_an_h100_has_these() -> None:
    classes = by_name("h100-80gb")
    assert {one.name: one.profiles[0] for one in classes.values() if one.kind is not Kind.EXACT} == {
        "m10": "1g.10gb",
        "m20": "1g.20gb",
        "m40": "3g.40gb",
        "m80": "7g.80gb",
        "q1": "7g.80gb",
        "q2": "3g.40gb",
        "q3": "2g.20gb",
        "q4": "1g.20gb",
        **dict.fromkeys(("q5", "q6", "q7"), "1g.10gb"),
    }
    assert classes["m10"].profiles[:2] == ("1g.10gb", "1g.10gb+me")
    assert {name: classes[name].weight for name in ("1g.10gb", "m20", "q2", "7g.80gb")} == {
        "1g.10gb": 1,
        "m20": 2,
        "q2": 4,
        "7g.80gb": 8,
    }


def test_a_memory_class_is_served_across_models() -> None:
    m20 = by_name("h100-80gb", "h200-141gb")["m20"]
    assert {"1g.20gb", "1g.35gb", "2g.35gb", "7g.141gb"} <= set(m20.profiles)
    assert "1g.18gb" not in m20.profiles
    m18 = by_name("h100-80gb", "h200-141gb")["m18"]
    assert m18.profiles[0] == "1g.18gb"
    assert m18.weight == 1


def test_a_name_that_is_less_elsewhere_serves_no_share() -> None:
    both = by_name("a100-sxm4-40gb", "h100-80gb")
    assert "1g.10gb" in by_name("a100-sxm4-40gb")["q4"].profiles
    assert "1g.10gb" not in both["q4"].profiles
    assert both["m10"].weight == 1


@pytest.mark.parametrize("key", load_products())
def test_every_product_has_sound_classes(key: str) -> None:
    profiles = load_products()[key].profiles
    classes = build({key: profiles})
    assert len({one.name for one in classes}) == len(classes)
    for one in classes:
        assert one.profiles
        assert 1 <= one.weight <= 8
        if one.kind is Kind.MEMORY:
            assert set(one.profiles) == {name for name in profiles if memory_gb(name) >= one.param}
    caps = most(classes, [profiles])
    shares = {one.param: caps[one.name] for one in classes if one.kind is Kind.FRACTION}
    assert all(count >= n or key.startswith("rtx-pro-6000") for n, count in shares.items())
    drawn = Catalogue(pool="p", partitions=(("a", "b"),), classes=classes)
    assert parse(render(drawn)) == drawn


@pytest.mark.parametrize("key", ["h100-sxm5-80gb", "a30-24gb", "a100-sxm4-40gb"])
def test_the_most_of_a_class_is_what_the_best_layout_holds(key: str) -> None:
    profiles = load_products()[key].profiles
    classes = build(
        {key: profiles},
        {"odd": NamedClass(profiles=tuple(name for name in profiles if "+me" in name or name[0] == "2"))},
    )
    layouts = [[name for name, _ in layout] for layout in all_layouts(profiles)]
    best = {one.name: max(sum(name in one.profiles for name in layout) for layout in layouts) for one in classes}
    assert most(classes, [profiles]) == best
    assert most(classes, [profiles] * 3) == {name: 3 * count for name, count in best.items()}
    for one in classes:
        if one.kind is Kind.EXACT:
            assert best[one.name] == remaining(profiles, (), one.name)


def test_a_node_of_two_models_holds_what_both_hold() -> None:
    h200 = shapes_of("h200-141gb")
    classes = build({"h100": H100, "h200": h200})
    caps = most(classes, [H100, h200])
    assert (caps["1g.10gb"], caps["1g.18gb"], caps["m10"], caps["m80"]) == (7, 7, 14, 2)
    assert set(most(classes, []).values()) == {0}


def test_an_admins_classes() -> None:
    named = {
        "small": named_class("small", memory="10gb"),
        "half": named_class("half", fraction="1/2"),
        "big": named_class("big", profiles=["4g.40gb", "3g.40gb"]),
    }
    classes = by_name("h100-80gb", named=named)
    assert classes["small"].profiles == classes["m10"].profiles
    assert classes["half"].profiles == classes["q2"].profiles
    assert classes["big"].profiles == ("3g.40gb", "4g.40gb")
    assert {classes[name].kind for name in named} == {Kind.NAMED}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Small",
        "9lives",
        "a b",
        "a.b",
        "a/b",
        "a:b",
        "m10",
        "q4",
        "m",
        "g",
        "kb",
        "gib",
        "pad",
        "none",
        "vgpu",
        "x" * 33,
        "é",
    ],
)
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"classes\."):
        by_name("h100-80gb", named={name: NamedClass(memory_gb=10)})
    with pytest.raises(ConfigError, match=r"aliases\."):
        check_aliases({name: "1g.10gb"}, pool())


def test_a_class_that_nothing_serves_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"classes\.huge: no GPU"):
        by_name("h100-80gb", named={"huge": NamedClass(memory_gb=81)})
    with pytest.raises(ConfigError, match=r"classes\.old: .*'1g\.5gb'") as caught:
        by_name("h100-80gb", named={"old": NamedClass(profiles=("1g.5gb",))})
    assert "1g.10gb" in caught.value.hint


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"memory": "10gb", "fraction": "1/2"},
        {"memory": "ten"},
        {"memory": "1/2"},
        {"fraction": "10gb"},
        {"fraction": "3/4"},
    ],
    ids=str,
)
def test_a_wish_that_is_unclear_is_refused(wish: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"classes\.x: "):
        named_class("x", **wish)


def test_aliases_are_other_spellings() -> None:
    assert check_aliases({"tiny": "1g.10gb", "gb20": "20gb", "quarter": "1/4", "wee": "small"}, pool()) == {
        "tiny": "1g.10gb",
        "gb20": "m20",
        "quarter": "q4",
        "wee": "small",
    }
    for target in ("2g.10gb", "", "pad", "1", "a:b"):
        with pytest.raises(ConfigError, match=r"aliases\.x: "):
            check_aliases({"x": target}, pool())
    for taken in ("small", "half"):
        with pytest.raises(ConfigError, match="means something else"):
            check_aliases({taken: "1g.10gb"}, pool())


def test_a_default_class_may_be_written_as_users_write_it() -> None:
    assert class_named("10gb", pool(), "default_class") == "m10"
    with pytest.raises(ConfigError, match=r"default_class: .*did you mean 2g\.20gb"):
        class_named("2g.10gb", replace(pool(), default=""), "default_class")


def test_a_pool_without_gpus_has_no_class() -> None:
    assert build({}) == ()
