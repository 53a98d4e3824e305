"""Slurm's calls of vgpu.lua, and what each wrote into the job."""

from typing import Any

from tests.unit.lua.harness import Lua

REFUSED = 2072
NO_VAL, NO_VAL16, NO_VAL64 = 4294967294, 65534, 1.8446744073709552e19
USER = 1000
# As 22.05 hands them over (live).
UNSET: dict[str, Any] = {
    **dict.fromkeys(("min_nodes", "max_nodes", "num_tasks", "max_cpus"), NO_VAL),
    **dict.fromkeys(("ntasks_per_node", "cpus_per_task", "pn_min_cpus", "shared", "sockets_per_node"), NO_VAL16),
    "pn_min_memory": NO_VAL64,
    "min_cpus": 1,
    "argc": 0,
}
PARTS = {"cpu": {"name": "cpu", "flag_default": 0}, "gpu": {"name": "gpu", "flag_default": 1}}
RECORD = {
    "tres_per_node": "gres/vgpu:m20:1,gres/vgpu_mem:2",
    "partition": "gpu,vgpu-wait",
    "min_nodes": 1,
    "max_nodes": 0,
    "pn_min_cpus": 1,
}


def submit(lua: Lua, parts: Any = PARTS, **fields: Any) -> tuple[int, dict[str, Any]]:
    """The answer, and the fields that were changed."""
    given = {**UNSET, "script": "#!/bin/sh\n", **fields}
    desc = lua.table(given)
    code = lua.call("submit", desc, lua.table(parts) if parts is not None else None, USER)
    return code, changes(lua, given, desc)


def modify(lua: Lua, rec: dict[str, Any], uid: int = USER, **fields: Any) -> tuple[int, dict[str, Any]]:
    given = {**UNSET, "min_cpus": NO_VAL, **fields}
    desc = lua.table(given)
    code = lua.call("modify", desc, lua.table(rec), lua.table(PARTS), uid)
    return code, changes(lua, given, desc)


def changes(lua: Lua, given: dict[str, Any], desc: Any) -> dict[str, Any]:
    plain = {**UNSET, **lua.plain(desc)}
    return {key: value for key, value in plain.items() if given.get(key) != value and key not in UNSET}


def cli(lua: Lua, kind: str, text: str | None, jobid: str | None = None) -> tuple[int, str | None]:
    options = lua.table(
        {key: value for key, value in (("type", kind), ("gres", text), ("jobid", jobid)) if value is not None}
    )
    code = lua.call("cli", options)
    return code, lua.plain(options).get("gres")
