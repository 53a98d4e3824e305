"""Broken records, a broken catalogue and errors of our own refuse slice jobs only."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.lua.calls import NO_VAL, RECORD, REFUSED, UNSET, USER, modify, submit
from tests.unit.lua.harness import Lua

FIELDS = (
    *(
        "tres_per_node",
        "tres_per_job",
        "tres_per_task",
        "tres_per_socket",
        "gres",
        "partition",
        "script",
        "admin_comment",
    ),
    *("req_nodes", "exc_nodes", "overcommit", "min_mem_per_node", "min_mem_per_cpu", *UNSET),
)


@pytest.mark.parametrize("value", [None, True, 7, NO_VAL, -1, "", "vgpu", "nonsense"], ids=repr)
def test_no_field_is_trusted_to_be_there(lua: Lua, value: Any) -> None:
    for field in FIELDS:
        for base in ({}, {"tres_per_node": "gres:vgpu:1"}):
            fields = {**base, field: value}
            assert submit(lua, **fields)[0] in (0, REFUSED)
            assert modify(lua, {**RECORD, field: value}, **fields)[0] in (0, REFUSED)
    assert lua.plain(lua.runtime.globals()[b"logged"]) == {}, "no error in the Lua"


def test_records_that_fail_are_no_slice_jobs(lua: Lua) -> None:
    broken = lua.runtime.execute(b"return setmetatable({}, {__index = function() error('no') end})")
    assert lua.call("submit", broken, None, USER) == 0
    assert lua.call("modify", broken, broken, None, USER) == 0
    assert lua.call("submit", lua.table({}), None, USER) == 0


def test_an_error_of_ours_refuses_slice_jobs_only(lua: Lua) -> None:
    lua.module[b"decide"] = lua.runtime.execute(b"return function() error('planted %s') end")
    assert submit(lua, tres_per_node="gres:vgpu") == (REFUSED, {})
    assert submit(lua, tres_per_node="gres:gpu:1") == (0, {})
    assert modify(lua, RECORD, tres_per_node="gres:vgpu") == (REFUSED, {})
    assert modify(lua, RECORD, min_nodes=2) == (REFUSED, {})
    assert modify(lua, RECORD, time_limit=5) == (0, {})
    lua.module[b"parse"] = lua.module[b"decide"]
    assert modify(lua, {"tres_per_node": "gres:gpu:1"}, min_nodes=2) == (0, {})
    assert modify(lua, RECORD, min_nodes=2) == (REFUSED, {})
    assert "planted %s" in str(lua.plain(lua.runtime.globals()[b"logged"]))


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "other names", "binary"])
def test_a_broken_catalogue_refuses_slice_jobs_only(lua: Lua, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "catalogue"
    whole = path.read_text()
    texts = {
        "empty": "",
        "cut": whole[:-5],
        "other names": whole.replace("gres vgpu pad", "gres slice pad"),
        "binary": "\0" * 99,
    }
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(texts[damage])
    assert submit(lua, tres_per_node="gres:vgpu") == (REFUSED, {})
    assert "the pool's catalogue is missing or broken" in lua.told()[-1]
    assert submit(lua, tres_per_node="gres:gpu:1,gres:nvgpu:1") == (0, {})
    assert modify(lua, RECORD, tres_per_node="gres:vgpu:1") == (REFUSED, {})
    assert modify(lua, RECORD, min_nodes=2) == (REFUSED, {})
    assert modify(lua, RECORD, uid=0, partition="cloud") == (0, {})
    assert modify(lua, RECORD, time_limit=5) == (0, {})
    path.write_text(whole)
    assert submit(lua, tres_per_node="gres:vgpu")[0] == 0


def test_a_new_catalogue_counts_at_once(lua: Lua, tmp_path: Path) -> None:
    assert submit(lua, tres_per_node="gres:vgpu:tiny")[0] == 0
    (tmp_path / "catalogue").write_text((tmp_path / "catalogue").read_text().replace("alias tiny ", "alias wee "))
    assert submit(lua, tres_per_node="gres:vgpu:tiny")[0] == REFUSED
    assert submit(lua, tres_per_node="gres:vgpu:wee")[0] == 0
