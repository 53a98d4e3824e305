"""What was decided for one job is used for the next like it, and for no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin import catalogue_file
from tests.cases.pool import pool
from tests.unit.lua.calls import submit
from tests.unit.lua.harness import Lua

PER_NODE: dict[str, Any] = {"tres_per_node": "gres:vgpu:2"}

PER_TASK: dict[str, Any] = {"tres_per_task": "gres/vgpu:1", "num_tasks": 4}


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [
        (PER_NODE, "tres_per_node", "gres:vgpu:m20:2"),
        (PER_NODE, "tres_per_job", "gres/vgpu:1"),
        (PER_NODE, "tres_per_task", "gres/vgpu:1"),
        (PER_NODE, "tres_per_socket", "gres/vgpu:1"),
        (PER_NODE, "min_nodes", 4000),
        (PER_TASK, "max_nodes", 1),
        (PER_NODE, "num_tasks", 2),
        (PER_TASK, "ntasks_per_node", 2),
        ({"tres_per_socket": "gres/vgpu:1"}, "sockets_per_node", 1),
        (PER_NODE, "cpus_per_task", 9999),
        (PER_NODE, "pn_min_cpus", 9999),
        (PER_NODE, "min_mem_per_node", 10**8),
        (PER_NODE, "min_mem_per_cpu", 10**8),
        (PER_NODE, "req_nodes", "elsewhere"),
        (PER_NODE, "exc_nodes", "n[1-2"),
        (PER_NODE, "shared", 0),
        ({**PER_NODE, "num_tasks": 9999}, "overcommit", 1),
        (PER_NODE, "partition", "cpu"),
    ],
)
def test_a_job_of_another_kind_is_decided_anew(lua: Lua, base: dict[str, Any], field: str, value: Any) -> None:
    """What was decided for a like request is used again, so each field must tell two jobs apart."""
    first, told = submit(lua, **base), lua.told()
    assert submit(lua, **base) == first
    assert lua.told() == told * 2
    second = submit(lua, **{**base, field: value})
    assert (second, lua.told()[2 * len(told) :]) != (first, told)
    assert submit(lua, **base) == first


def test_decisions_end_with_the_catalogue(lua: Lua, tmp_path: Path) -> None:
    assert submit(lua, tres_per_node="gres:vgpu")[1]["gres"] == "vgpu:1g.10gb:1,vgpu_mem:1"
    catalogue_file.write(tmp_path / "catalogue", replace(pool(), default="m20"))
    assert submit(lua, tres_per_node="gres:vgpu")[1]["gres"] == "vgpu:m20:1,vgpu_mem:2"


def test_few_decisions_are_kept_and_none_of_a_long_text(lua: Lua) -> None:
    def kept() -> list[str]:
        cat, _ = lua.module[b"load"]()
        return list(lua.plain(cat)["kept"])

    for number in range(1, 300):
        submit(lua, tres_per_node=f"gres:vgpu:{number}")
        assert len(kept()) <= 64
    assert "gres:vgpu:299" in kept()
    submit(lua, tres_per_node="gres:vgpu:1", exc_nodes=",".join(f"n{number}" for number in range(300)))
    assert "gres:vgpu:1" not in kept()
