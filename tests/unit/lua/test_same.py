"""Generated requests, jobs, host lists and catalogues mean the same in Lua and in Python."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.catalogue import parse as parse_catalogue
from slurm_plugin.catalogue import render
from slurm_plugin.errors import ConfigError
from slurm_plugin.job_request import MAX_HOSTS, Job, JobRewrite, decide
from slurm_plugin.request import Refusal
from slurm_plugin.slurm.hostlist import expand
from tests.cases.pool import laid_out, pool
from tests.unit.lua.harness import VERSIONS, Lua

POOL = pool()
TEXT = render(POOL)
LUAS = {version: Lua(version) for version in VERSIONS}
PARSED = {version: lua.catalogue(TEXT) for version, lua in LUAS.items()}
LAID_OUT = laid_out()
LAID_OUT_TEXT = render(LAID_OUT)
LAID_OUT_PARSED = {version: lua.catalogue(LAID_OUT_TEXT) for version, lua in LUAS.items()}

class_texts = st.one_of(
    st.sampled_from([one.name for one in POOL.classes]),
    st.sampled_from(
        ["tiny", "pad", "none", "g", "M", "1e1", "-1", "+2", "0", "", "m0", "q0", "m9999999", "1G", "3g", "7g.80GB"]
    ),
    st.sampled_from(
        ["0.25", ".3", "0.000001", "25%", "100%", "101%", "-20gb", "mig-1g.10gb", "mig-tiny", "1k", "3pib", "20 gb"]
    ),
    st.sampled_from(['"20gb"', "'small'", "1.20gb", "1.5gb", "é", "a%b"]),
    st.builds(
        "{}{}".format, st.integers(0, 10**8), st.sampled_from(["", "g", "GB", "gib", "mb", "MiB", "t", "k", "pb"])
    ),
    st.builds("{}.{}{}".format, st.integers(0, 99), st.integers(0, 99), st.sampled_from(["", "g", "gb", "mb"])),
    st.builds("{}/{}".format, st.integers(0, 12), st.integers(0, 12)),
    st.builds("{}g.{}gb{}".format, st.integers(0, 8), st.integers(0, 200), st.sampled_from(["", "+me", "-me", "+gfx"])),
    st.text("smalhfbig1 _-", max_size=9),
)
counts = st.one_of(st.integers(-1, 40).map(str), st.sampled_from(["", "2k", "007", "9" * 30, "1(S:0)"]))
heads = st.sampled_from(["", "gres:", "gres/", "GRES:", "gres:gres/", " ", "gres: "])
names = st.sampled_from(["vgpu", "VGPU", "vgpu_mem", "gpu", "vgpux", "lic"])
marks = st.sampled_from([":", "=", "::", " ", ""])
terms = st.one_of(
    st.builds("{}{}{}{}".format, heads, names, marks, class_texts),
    st.builds("{}{}{}{}{}{}".format, heads, names, marks, class_texts, marks, counts),
    st.text(max_size=12),
)
gres_lists = st.lists(terms, max_size=3).map(",".join)
usually = st.one_of(st.just("vgpu:1"), gres_lists)
few = st.one_of(st.none(), st.integers(1, 5))
jobs = st.builds(
    Job,
    per_node=st.one_of(st.just(""), usually),
    per_job=st.one_of(st.just(""), usually),
    per_task=st.one_of(st.just(""), usually),
    per_socket=st.one_of(st.just(""), usually),
    nodes_min=few,
    nodes_max=few,
    tasks=st.one_of(few, st.integers(30, 200)),
    tasks_per_node=few,
    sockets_per_node=few,
    cpus_per_task=st.one_of(st.none(), st.integers(1, 70)),
    cpus_per_node=st.one_of(st.none(), st.integers(1, 70)),
    memory_per_node=st.one_of(st.none(), st.integers(0, 600_000)),
    memory_per_cpu=st.one_of(st.none(), st.integers(0, 20_000)),
    hosts=st.one_of(st.none(), st.lists(st.sampled_from(["n1", "n2", "n3", "x"]), max_size=3).map(tuple)),
    not_hosts=st.one_of(st.none(), st.lists(st.sampled_from(["n1", "n2", "n3", "x"]), max_size=3).map(tuple)),
    exclusive=st.booleans(),
    overcommit=st.booleans(),
    partition=st.one_of(
        st.none(), st.lists(st.sampled_from(["gpu", "gpu-long", "cpu", "vgpu-wait", "é"])).map(",".join)
    ),
)


@settings(max_examples=400, deadline=None)
@given(text=gres_lists)
def test_a_request_means_the_same(text: str) -> None:
    expected = decide(Job(per_node=text), POOL)
    for version, lua in LUAS.items():
        assert lua.decide(Job(per_node=text), PARSED[version]) == expected


@settings(max_examples=200, deadline=None)
@given(job=jobs)
def test_a_job_means_the_same(job: Job) -> None:
    for catalogue, parsed in ((POOL, PARSED), (LAID_OUT, LAID_OUT_PARSED)):
        expected = decide(job, catalogue)
        for version, lua in LUAS.items():
            assert lua.decide(job, parsed[version]) == expected


@pytest.mark.parametrize(
    ("job", "warning"),
    [
        (Job(per_node="vgpu:1g.10gb:16"), ""),
        (Job(per_node="vgpu:1/7:16"), ""),
        (Job(per_node="vgpu:10gb:20"), ""),
        (Job(per_node="vgpu:7g.80gb"), ""),
        (Job(per_node="vgpu:2g.20gb:1"), ""),  # n3's layout is not known
        (Job(per_node="vgpu:1g.10gb:17"), "no layout makes vgpu:1g.10gb:17 now; {}; did you mean vgpu:1g.10gb:16?"),
        (Job(per_node="vgpu:2g.20gb:1", not_hosts=("n3",)), "no layout makes vgpu:2g.20gb:1 now; {}"),
        (Job(per_node="vgpu:1g.10gb+me", not_hosts=("n3",)), "no layout makes vgpu:1g.10gb+me:1 now; {}"),
        (Job(per_node="vgpu:1g.10gb:1", nodes_min=2), ""),
        (
            Job(per_node="vgpu:1g.10gb:1", nodes_min=3),
            "too few nodes have a layout that makes vgpu:1g.10gb:1 now; {}",
        ),
        (Job(per_node="vgpu:1g.10gb:1", hosts=("n1", "n1")), ""),
        (
            Job(per_node="vgpu:1g.10gb:1", hosts=("n2",)),
            "no layout of these nodes makes vgpu:1g.10gb:1 now; {}",
        ),
        (Job(per_node="vgpu:1g.10gb:15", cpus_per_task=50, not_hosts=("n1",)), None),
    ],
    ids=str,
)
def test_what_no_layout_makes_is_told(job: Job, warning: str | None) -> None:
    found = decide(job, LAID_OUT)
    for version, lua in LUAS.items():
        assert lua.decide(job, LAID_OUT_PARSED[version]) == found
    if warning is None:
        return
    assert isinstance(found, JobRewrite)
    told = [note for note in found.notes if "layout" in note]
    wait = "this job waits until an admin changes that"
    assert told == ([f"vgpu: warning: {warning.format(wait)}"] if warning else [])


def test_a_count_that_is_suggested_works_now() -> None:
    found = decide(Job(per_node="vgpu:29", not_hosts=("n3",)), LAID_OUT)
    assert isinstance(found, Refusal)
    assert found.text.endswith("at once; did you mean vgpu:1g.10gb:16?")
    again = decide(Job(per_node="vgpu:1g.10gb:16", not_hosts=("n3",)), LAID_OUT)
    assert isinstance(again, JobRewrite)
    assert "layout" not in "".join(again.notes)


@settings(max_examples=200, deadline=None)
@given(text=gres_lists)
def test_what_was_rewritten_is_left_as_it_is(text: str) -> None:
    first = decide(Job(per_node=text), POOL)
    if isinstance(first, JobRewrite):
        again = decide(Job(per_node=first.per_node), POOL)
        assert isinstance(again, JobRewrite)
        assert (again.per_node, again.gres_class) == (first.per_node, first.gres_class)


@pytest.mark.parametrize("lua", LUAS.values(), ids=LUAS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "(null)",
        "n1",
        "n1,n2",
        "n[1-3]",
        "n[08-11],m7",
        "n[1,3-4]x",
        "a[1-2]b[0-1]",
        " n1 , n[2-3]",
        f"n[1-{MAX_HOSTS}]",
    ],
)
def test_a_host_list_is_expanded_as_slurm_does(lua: Lua, text: str) -> None:
    assert lua.expand(text) == list(expand(text))


@pytest.mark.parametrize("lua", LUAS.values(), ids=LUAS)
@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1]",
        "n[]",
        "n[3-1]",
        "n[a-b]",
        ",",
        "n1,,n2",
        "n[1-5001]",
        "n[1-999999999999]",
        "n[1-100][1-100]",
        "n[[1]]",
    ],
)
def test_a_bad_host_list_is_none(lua: Lua, text: str) -> None:
    assert lua.expand(text) is None


def accepted(text: str) -> bool:
    with contextlib.suppress(ConfigError):
        parse_catalogue(text)
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_catalogue_is_broken_for_both(data: Any) -> None:
    lines = data.draw(st.sampled_from([TEXT, LAID_OUT_TEXT])).split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    line = data.draw(
        st.one_of(
            st.sampled_from(lines),
            st.text("classnodeshp 0123456789-=m.g+\n", max_size=30),
            st.builds(lambda cut: lines[at][:cut], st.integers(0, 60)),
            st.builds(lambda cut: lines[at][:cut] + " " + lines[at][cut:], st.integers(0, 60)),
        )
    )
    text = "\n".join([*lines[:at], line, *lines[at + 1 :]])
    for lua in LUAS.values():
        assert (lua.catalogue(text) is not None) == accepted(text)


@settings(max_examples=200, deadline=None)
@given(hosts=st.text("n012[],-", max_size=12))
def test_a_line_of_nodes_is_the_same_nodes_for_both(hosts: str) -> None:
    text = TEXT.replace("node n3 2", f"node {hosts} 2")
    for lua in LUAS.values():
        found = lua.catalogue(text)
        assert (found is not None) == accepted(text)
        if found is not None:
            assert lua.plain(found)["nodes"].keys() == parse_catalogue(text).nodes.keys()


def test_half_a_catalogue_is_no_catalogue() -> None:
    for cut in range(0, len(TEXT)):
        assert not accepted(TEXT[:cut])
    for lua in LUAS.values():
        for cut in range(0, len(TEXT), 7):
            assert lua.catalogue(TEXT[:cut]) is None
