"""What vgpu.lua writes into a job at submit, and what it leaves alone."""

from typing import Any

import pytest

from tests.unit.lua.calls import NO_VAL, NO_VAL64, REFUSED, modify, submit
from tests.unit.lua.harness import Lua


def test_submit_writes_the_request_the_partitions_and_the_words(lua: Lua) -> None:
    code, wrote = submit(lua, tres_per_node="gres:gpu:1,gres:vgpu:20GB:2")
    assert code == 0
    assert wrote == {
        "gres": "gpu:1,vgpu:m20:2,vgpu_mem:4",
        "partition": "gpu,vgpu-wait",
        "admin_comment": "asked vgpu:20GB:2",
    }
    assert len(lua.told()) == 2


INFINITE = 4294967295
LIMITED = {
    "gpu": {"name": "gpu", "flag_default": 1, "max_time": 60, "max_nodes": 1},
    "gpu-long": {"name": "gpu-long", "flag_default": 0, "max_time": INFINITE, "max_nodes": 2},
    "vgpu-wait": {"name": "vgpu-wait", "flag_default": 0, "max_time": INFINITE, "max_nodes": INFINITE},
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time_limit": 120}, "partition gpu has a time limit of 60 minutes, not 120"),
        ({"time_limit": 120, "partition": "gpu,vgpu-wait"}, "partition gpu has a time limit of 60 minutes, not 120"),
        ({"min_nodes": 2}, "partition gpu gives a job at most 1 node, not 2"),
        ({"min_nodes": 3, "partition": "gpu-long,gpu"}, "partition gpu-long gives a job at most 2 nodes, not 3"),
    ],
)
def test_submit_refuses_what_the_wait_partition_alone_would_take(lua: Lua, fields: dict[str, Any], said: str) -> None:
    assert submit(lua, LIMITED, tres_per_node="gres:vgpu", **fields) == (REFUSED, {})
    assert lua.told() == [f"vgpu: {said}"]


@pytest.mark.parametrize(
    "fields",
    [
        {"time_limit": 60},
        {"time_limit": NO_VAL},
        {"time_limit": INFINITE, "partition": "gpu-long"},
        {"time_limit": 120, "partition": "gpu,gpu-long"},
        {"time_limit": 120, "qos": "long"},
        {"time_limit": 120, "default_qos": "long"},
    ],
    ids=str,
)
def test_submit_takes_what_one_of_the_jobs_partitions_may_start(lua: Lua, fields: dict[str, Any]) -> None:
    assert submit(lua, LIMITED, tres_per_node="gres:vgpu", **fields)[0] == 0


def test_submit_warns_of_a_request_that_the_environment_makes_for_each_srun(lua: Lua) -> None:
    code, _ = submit(lua, tres_per_node="gres:vgpu:1", environment={"SLURM_STEP_GRES": "vgpu:m20:1", "SLURM_GRES": ""})
    assert code == 0
    (warning,) = [line for line in lua.told() if "warning" in line]
    assert warning.endswith(
        "will ask for SLURM_STEP_GRES=vgpu:m20:1, which is in your environment;"
        " submit with: env -u SLURM_STEP_GRES sbatch"
    )


def test_submit_keeps_a_comment_of_the_sites_own_script(lua: Lua) -> None:
    _, wrote = submit(lua, tres_per_node="gres:vgpu", admin_comment="site=1")
    assert wrote["admin_comment"] == "site=1 asked vgpu"


def test_submit_clears_what_it_moved_and_keeps_the_rest(lua: Lua) -> None:
    code, wrote = submit(lua, tres_per_task="gres/vgpu:1,gres/gpu:1", tres_per_job="license/x:1", ntasks_per_node=2)
    assert code == 0
    assert wrote["tres_per_task"] == "gres/gpu:1"
    assert wrote["gres"] == "vgpu:1g.10gb:2,vgpu_mem:2"
    assert "tres_per_job" not in wrote
    _, wrote = submit(lua, tres_per_job="gres/vgpu:1")
    assert wrote["tres_per_job"] == ""


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tres_per_node": "gres:gpu:1"},
        {"tres_per_node": "(null)"},
        {"tres_per_node": ""},
        {"tres_per_task": "cpu:2"},
        {"shared": 0},
    ],
    ids=str,
)
def test_other_jobs_are_left_alone(lua: Lua, fields: dict[str, Any]) -> None:
    assert submit(lua, **fields) == (0, {})
    assert modify(lua, {"partition": "cpu", "tres_per_node": "gres:gpu:1"}, **fields) == (0, {})
    assert lua.told() == []


def test_a_refusal_changes_nothing_and_is_one_line(lua: Lua) -> None:
    assert submit(lua, tres_per_node="gres:vgpu:2g.10gb\nx") == (REFUSED, {})
    assert submit(lua, tres_per_node="gres:vgpu:2g.10gb") == (REFUSED, {})
    assert all("\n" not in line and line.startswith("vgpu: ") for line in lua.told())


def test_a_refusal_uses_slurms_own_code_where_it_has_one(lua: Lua) -> None:
    lua.runtime.execute(b"slurm.ESLURM_INVALID_GRES = 2073")
    assert submit(lua, tres_per_node="gres:vgpu:0") == (2073, {})


def test_without_a_default_partition_the_pools_are_named(lua: Lua) -> None:
    for parts in (None, {}, {"cpu": {"name": "cpu", "flag_default": 1}}):
        code, _ = submit(lua, parts=parts, tres_per_node="gres:vgpu")
        assert code == REFUSED
        assert "use --partition=gpu,gpu-long" in lua.told()[-1]


def test_node_lists_memory_and_exclusive_are_read(lua: Lua) -> None:
    assert submit(lua, tres_per_node="gres:vgpu", req_nodes="n[1-2]")[0] == 0
    assert submit(lua, tres_per_node="gres:vgpu", req_nodes="n[1-9]")[0] == REFUSED
    assert submit(lua, tres_per_node="gres:vgpu", exc_nodes="n[1-3]")[0] == REFUSED
    assert submit(lua, tres_per_node="gres:vgpu", min_mem_per_node=600_000)[0] == REFUSED
    assert submit(lua, tres_per_node="gres:vgpu", min_mem_per_cpu=100_000, cpus_per_task=8)[0] == REFUSED
    assert submit(lua, tres_per_node="gres:vgpu", min_mem_per_cpu=NO_VAL64 / 2)[0] == 0
    for shared, code in ((0, REFUSED), (1, 0), (2, 0), (3, 0), (4, REFUSED)):
        assert submit(lua, tres_per_node="gres:vgpu", shared=shared)[0] == code


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("gres:vgpu:20gb", "--gres=vgpu:m20:1"),
        ("gres:vgpu:2g.20gb", "--gres=vgpu:2g.20gb:1"),
        ("gres:vgpu:1/4:2", "--gres=vgpu:q4:2"),
        ("gres:vgpu:tiny", "--gres=vgpu:1g.10gb:1"),
        ("gres:vgpu", None),
        ("gres:vgpu:2", None),
        ("gres:vgpu:m20", None),
        ("gres:vgpu:2g.20gb:1", None),
        ("gres/vgpu:20gb", None),
    ],
)
def test_an_old_srun_is_told_what_to_type(lua: Lua, text: str, form: str | None) -> None:
    code, _ = submit(lua, tres_per_node=text, argc=1, script=None)
    assert code == (REFUSED if form else 0)
    assert form is None or f"write {form}," in lua.told()[-1]
    for fields in ({"argc": 0, "script": None}, {"argc": 1}):
        assert submit(lua, tres_per_node=text, **fields)[0] == 0, "salloc and sbatch take every form"


def test_a_later_part_of_a_het_job_is_sbatchs_when_the_first_has_a_script(lua: Lua) -> None:
    later = {"tres_per_node": "gres:vgpu:20gb", "argc": 1, "script": None, "het_job_offset": 1}
    assert submit(lua, tres_per_node=None, argc=1, het_job_offset=0)[0] == 0
    assert submit(lua, **later)[0] == 0
    assert submit(lua, tres_per_node=None, argc=1, het_job_offset=0, script=None)[0] == 0
    assert submit(lua, **later)[0] == REFUSED
