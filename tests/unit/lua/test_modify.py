"""What vgpu.lua writes into a job at an update, and what it leaves alone."""

from typing import Any

import pytest

from tests.unit.lua.calls import RECORD, REFUSED, USER, modify
from tests.unit.lua.harness import Lua


def test_modify_rewrites_a_new_request_and_no_comment(lua: Lua) -> None:
    code, wrote = modify(lua, RECORD, tres_per_node="gres:vgpu:1/4")
    assert (code, wrote) == (0, {"gres": "vgpu:q4:1,vgpu_mem:2"})


def test_modify_gives_a_plain_job_its_wait_partition(lua: Lua) -> None:
    code, wrote = modify(lua, {"partition": "gpu", "min_nodes": 1}, tres_per_node="gres:vgpu:1")
    assert (code, wrote["partition"]) == (0, "gpu,vgpu-wait")


def test_modify_checks_what_the_job_becomes(lua: Lua) -> None:
    assert modify(lua, RECORD, tres_per_node="gres:vgpu:2g.10gb") == (REFUSED, {})
    assert modify(lua, RECORD, min_nodes=4) == (REFUSED, {})
    assert modify(lua, RECORD, min_nodes=3) == (0, {})
    assert modify(lua, RECORD, req_nodes="n9") == (REFUSED, {})
    assert modify(lua, RECORD, shared=0) == (REFUSED, {})
    assert modify(lua, RECORD, partition="gpu") == (0, {"partition": "gpu,vgpu-wait"})
    assert modify(lua, RECORD, partition="gpu,vgpu-wait") == (0, {})
    assert modify(lua, RECORD, partition="cpu") == (REFUSED, {})
    assert modify(lua, RECORD, tres_per_node="gres:vgpu_mem:0") == (REFUSED, {})
    assert modify(lua, {**RECORD, "min_nodes": 4}, tres_per_node="gres:vgpu:2") == (REFUSED, {})


@pytest.mark.parametrize(
    "change",
    [
        {"num_tasks": 100_000},
        {"ntasks_per_node": 1000},
        {"cpus_per_task": 1000},
        {"pn_min_cpus": 1000},
        {"pn_min_memory": 1 << 40, "min_mem_per_node": 1 << 40},
        {"exc_nodes": "n[1-3]"},
    ],
    ids=lambda change: str(*list(change)[:1]),
)
def test_modify_checks_each_field_that_can_leave_a_job_without_a_node(lua: Lua, change: dict[str, Any]) -> None:
    tasks = {**RECORD, "num_tasks": 65}
    assert modify(lua, tasks, **change) == (REFUSED, {})
    assert lua.told()
    small: dict[str, Any] = {key: "n1" if key == "exc_nodes" else 2 for key in change}
    assert modify(lua, tasks, **small) == (0, {})


@pytest.mark.parametrize("state", [1, 2, 0x8001])
def test_modify_leaves_the_partition_of_a_job_that_has_started(lua: Lua, state: int) -> None:
    """Its record has the one it runs in, and Slurm would deny the whole update: nobody could shrink his job."""
    assert modify(lua, {**RECORD, "partition": "gpu", "job_state": state}, min_nodes=1) == (0, {})
    assert modify(lua, {**RECORD, "partition": "gpu", "job_state": state}, min_nodes=4) == (REFUSED, {})


@pytest.mark.parametrize("state", [0, 0x8000])
def test_modify_gives_a_job_that_waits_its_wait_partition_back(lua: Lua, state: int) -> None:
    code, wrote = modify(lua, {**RECORD, "partition": "gpu", "job_state": state}, min_nodes=1)
    assert (code, wrote["partition"]) == (0, "gpu,vgpu-wait")


def test_modify_leaves_the_rest_alone(lua: Lua) -> None:
    assert modify(lua, RECORD, priority=0) == (0, {})
    assert modify(lua, RECORD, tres_per_node="gres:") == (0, {}), "a user may give his slices up"
    assert modify(lua, {**RECORD, "tres_per_node": "gres:vgpu:m20:1,gres:vgpu_mem:9"}, min_nodes=2) == (0, {})


OLD_RECORD = {**RECORD, "tres_per_node": "gres:vgpu:m20:1,gres:vgpu_mem:2"}


@pytest.mark.parametrize("text", ["gres:vgpu:1/4", "gres:vgpu:20", "gres:", "gres:gpu:1"])
@pytest.mark.parametrize("uid", [USER, 0])
def test_a_slurm_that_takes_no_gres_from_a_job_keeps_the_class(lua: Lua, text: str, uid: int) -> None:
    assert modify(lua, OLD_RECORD, uid=uid, tres_per_node=text) == (REFUSED, {})
    told = "vgpu: this release of Slurm can't take vgpu:m20:1 from a job; cancel it and submit it again"
    assert lua.told()[-1] == told
    assert modify(lua, RECORD, uid=uid, tres_per_node=text)[0] == 0


def test_such_a_slurm_changes_the_count_and_a_plain_job(lua: Lua) -> None:
    assert modify(lua, OLD_RECORD, tres_per_node="gres:vgpu:20gb:2") == (0, {"gres": "vgpu:m20:2,vgpu_mem:4"})
    plain = {**OLD_RECORD, "tres_per_node": "gres:gpu:1"}
    assert modify(lua, plain, tres_per_node="gres:gpu:1,gres:vgpu:1/4")[0] == 0


@pytest.mark.parametrize("uid", [0, 64030, 4294967294])
def test_an_operators_partition_stands(lua: Lua, uid: int) -> None:
    assert modify(lua, RECORD, uid=uid, partition="cloud") == (0, {})
    assert modify(lua, RECORD, uid=uid, partition="cloud", tres_per_node="gres:vgpu:small") == (
        0,
        {"gres": "vgpu:small:1,vgpu_mem:1"},
    )
