"""What vgpu.lua does for the partition of virtual nodes, whose jobs run at other sites."""

from typing import Any

import pytest

from tests.unit.lua.calls import RECORD, REFUSED, modify, submit
from tests.unit.lua.harness import Lua

BURST = "_SLURM_SPANK_OPTION_vgpu_burst_burst"
INPUT = "VGPU_BURST_INPUT_MIB"
OPERATOR = 64030
PLAIN = {"partition": "cpu", "script": "#!/bin/sh\n"}


@pytest.fixture
def cloud(lua: Lua) -> Lua:
    lua.module[b"cloud"] = b"cloud"
    return lua


def test_a_site_without_such_a_partition_knows_nothing_of_it(lua: Lua) -> None:
    fields = {"partition": "cloud", "script": "", "min_nodes": 4, "environment": {BURST: "?? x"}}
    assert submit(lua, **fields) == (0, {})
    assert modify(lua, PLAIN, partition="cloud", min_nodes=4) == (0, {})
    assert lua.told() == []


@pytest.mark.parametrize(("asked", "becomes"), [("cloud", "cloud,vgpu-wait"), ("gpu,cloud", "gpu,cloud,vgpu-wait")])
def test_a_request_for_slices_gets_the_wait_partition_there_too(cloud: Lua, asked: str, becomes: str) -> None:
    code, wrote = submit(cloud, partition=asked, tres_per_node="gres:vgpu:20gb")
    assert (code, wrote["partition"]) == (0, becomes)
    code, wrote = modify(cloud, {**RECORD, "script": "#!/bin/sh\n"}, partition=asked)
    assert (code, wrote["partition"]) == (0, becomes)


def test_what_nodes_of_other_sites_can_hold_is_not_judged_here(cloud: Lua) -> None:
    huge = {"tres_per_node": "gres:vgpu:20gb:4", "cpus_per_task": 4000, "num_tasks": 1}
    assert submit(cloud, partition="gpu", **huge)[0] == REFUSED
    assert submit(cloud, partition="cloud", **huge)[0] == 0
    assert submit(cloud, partition="gpu,cloud", **huge)[0] == 0


def test_a_job_without_slices_is_left_as_it_is(cloud: Lua) -> None:
    assert submit(cloud, partition="cloud") == (0, {})
    assert submit(cloud, partition="cpu", min_nodes=4, licenses="a:1") == (0, {})
    assert cloud.told() == []


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"script": ""}, "partition cloud takes batch jobs only; use sbatch"),
        ({"het_job_offset": 0}, "heterogeneous jobs"),
        ({"min_nodes": 2}, "jobs of several nodes"),
        ({"num_tasks": 4, "ntasks_per_node": 2}, "jobs of several nodes"),
        ({"num_tasks": 8}, "jobs of several tasks (for CPUs alone write -c)"),
        ({"req_nodes": "n1"}, "jobs that name their nodes"),
        ({"features": "a100"}, "jobs with a --constraint"),
        ({"reservation": "maintenance"}, "jobs in a reservation"),
        ({"licenses": "matlab:1"}, "jobs with licenses"),
        ({"shared": 0}, "jobs with --exclusive"),
        ({"container": "/a/bundle"}, "jobs with a --container"),
        ({"cron_job": True}, "jobs of scrontab"),
    ],
    ids=str,
)
def test_what_can_not_run_at_another_site_is_refused_in_one_line(cloud: Lua, fields: dict[str, Any], what: str) -> None:
    for partition in ("cloud", "gpu,cloud"):
        assert submit(cloud, partition=partition, **fields) == (REFUSED, {})
        assert submit(cloud, partition=partition, tres_per_node="gres:vgpu", **fields) == (REFUSED, {})
    told = cloud.told()
    assert len(told) == 4
    assert all(line.startswith("fed: ") and what in line and "\n" not in line for line in told)


def test_the_default_partition_counts_as_asked_for(cloud: Lua) -> None:
    parts = {"cloud": {"name": "cloud", "flag_default": 1}}
    assert submit(cloud, parts=parts, script="") == (REFUSED, {})


@pytest.mark.parametrize(
    ("word", "mark"),
    [
        ("auto", "fed:burst=auto"),
        ("always", "fed:burst=always"),
        ("never", "fed:burst=never"),
        ("aws", "fed:burst=pool:aws"),
        ("a.b_c+d-1", "fed:burst=pool:a.b_c+d-1"),
    ],
)
def test_the_word_of_burst_is_remembered_on_the_job(cloud: Lua, word: str, mark: str) -> None:
    assert submit(cloud, partition="cpu", environment={BURST: word}) == (0, {"admin_comment": mark})
    code, wrote = submit(cloud, tres_per_node="gres:vgpu:20gb", admin_comment="site=1", environment={BURST: word})
    assert (code, wrote["admin_comment"]) == (0, f"site=1 asked vgpu:20gb {mark}")


def test_how_much_it_brings_is_remembered_where_it_is_a_number(cloud: Lua) -> None:
    for words, mark in (
        ({INPUT: "20"}, "fed:in=20"),
        ({INPUT: "20", BURST: "aws"}, "fed:burst=pool:aws fed:in=20"),
        ({INPUT: "2 fed:burst=always", BURST: "auto"}, "fed:burst=auto"),
        ({INPUT: "1" * 10, BURST: "auto"}, "fed:burst=auto"),
    ):
        assert submit(cloud, partition="cpu", environment=words) == (0, {"admin_comment": mark})
    assert submit(cloud, partition="cpu", environment={INPUT: "x"}) == (0, {})
    assert submit(cloud, partition="cpu", environment={INPUT: "20", BURST: "a b"}) == (REFUSED, {})


@pytest.mark.parametrize("word", ['x fed:{"open":1}', "a b", "a\nb", "a/b", "x" * 65, "[vgpu: x]", "é"])
def test_a_word_that_is_none_is_refused_and_never_written(cloud: Lua, word: str) -> None:
    assert submit(cloud, partition="cpu", environment={BURST: word}) == (REFUSED, {})
    (line,) = cloud.told()
    assert "\n" not in line
    assert "{" not in line


def test_words_that_contradict_the_job_are_refused(cloud: Lua) -> None:
    assert submit(cloud, partition="gpu,cloud", environment={BURST: "never"}) == (REFUSED, {})
    assert submit(cloud, partition="cloud", environment={BURST: "aws"}) == (REFUSED, {})
    assert submit(cloud, partition="cloud", environment={BURST: "always"})[0] == 0
    assert submit(cloud, partition="cpu", min_nodes=2, environment={BURST: "always"}) == (REFUSED, {})
    assert submit(cloud, partition="cpu", min_nodes=2, environment={BURST: "aws"}) == (REFUSED, {})
    assert submit(cloud, partition="cpu", num_tasks=8, environment={BURST: "always"}) == (REFUSED, {})
    assert submit(cloud, partition="cpu", num_tasks=8, environment={BURST: "auto"})[0] == 0
    assert submit(cloud, partition="cpu", min_nodes=2, environment={BURST: "never"})[0] == 0


@pytest.mark.parametrize("word", ["", "auto"])
@pytest.mark.parametrize("fields", [{"container": "/x"}, {"cron_job": True}], ids=str)
def test_what_nobody_sees_later_is_remembered(cloud: Lua, word: str, fields: dict[str, Any]) -> None:
    code, wrote = submit(cloud, partition="cpu", environment={BURST: word}, **fields)
    assert (code, wrote) == (0, {"admin_comment": "fed:burst=never"})


def test_the_word_is_found_where_nothing_is_exported(cloud: Lua) -> None:
    code, wrote = submit(cloud, partition="cpu", environment={"SLURM_GET_USER_ENV": "1", f"SLURM_SPANK_{BURST}": "aws"})
    assert (code, wrote) == (0, {"admin_comment": "fed:burst=pool:aws"})


def test_a_user_can_not_move_there_what_can_not_run_there(cloud: Lua) -> None:
    assert modify(cloud, PLAIN, partition="cloud") == (0, {})
    for record in (
        {**PLAIN, "script": ""},
        {**PLAIN, "min_nodes": 2},
        {**PLAIN, "num_tasks": 2},
        {**PLAIN, "het_job_id": 7},
        {**PLAIN, "licenses": "a:1"},
        {**PLAIN, "resv_name": "r"},
        {**PLAIN, "admin_comment": "asked vgpu fed:burst=never"},
    ):
        assert modify(cloud, record, partition="cpu,cloud") == (REFUSED, {})
        assert modify(cloud, record, partition="cpu,cloud", uid=0) == (0, {})
        assert modify(cloud, record, partition="cpu,cloud", uid=OPERATOR) == (0, {})
        assert modify(cloud, record, partition="cpu") == (0, {})


def test_a_user_can_not_change_a_job_there_to_one_that_can_not(cloud: Lua) -> None:
    there = {**PLAIN, "partition": "gpu,vgpu-wait,cloud"}
    assert modify(cloud, there, min_nodes=2) == (REFUSED, {})
    assert modify(cloud, there, req_nodes="n1") == (REFUSED, {})
    assert modify(cloud, there, partition="cpu", min_nodes=2) == (0, {})
    assert modify(cloud, there, time_limit=10) == (0, {})
