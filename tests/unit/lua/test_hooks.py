"""What vgpu.lua writes into a job at submit and at an update, and what it leaves alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin import catalogue_file
from slurm_plugin.errors import ConfigError
from slurm_plugin.hooks.lua import FILES, scripts
from tests.cases.pool import pool
from tests.unit.lua.harness import VERSIONS, Lua

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


@pytest.fixture(params=VERSIONS)
def lua(request: pytest.FixtureRequest, tmp_path: Path) -> Lua:
    made = Lua(request.param)
    catalogue_file.write(tmp_path / "catalogue", pool())
    made.module[b"catalogue"] = str(tmp_path / "catalogue").encode()
    return made


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


RECORD = {
    "tres_per_node": "gres/vgpu:m20:1,gres/vgpu_mem:2",
    "partition": "gpu,vgpu-wait",
    "min_nodes": 1,
    "max_nodes": 0,
    "pn_min_cpus": 1,
}


def test_submit_writes_the_request_the_partitions_and_the_words(lua: Lua) -> None:
    code, wrote = submit(lua, tres_per_node="gres:gpu:1,gres:vgpu:20GB:2")
    assert code == 0
    assert wrote == {
        "gres": "gpu:1,vgpu:m20:2,vgpu_mem:4",
        "partition": "gpu,vgpu-wait",
        "admin_comment": "asked vgpu:20GB:2",
    }
    assert len(lua.told()) == 2


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


@pytest.mark.parametrize("value", [None, True, 7, NO_VAL, -1, "", "vgpu", "nonsense"], ids=repr)
def test_no_field_is_trusted_to_be_there(lua: Lua, value: Any) -> None:
    for field in FIELDS:
        for base in ({}, {"tres_per_node": "gres:vgpu:1"}):
            fields = {**base, field: value}
            assert submit(lua, **fields)[0] in (0, REFUSED)
            assert modify(lua, {**RECORD, field: value}, **fields)[0] in (0, REFUSED)
    assert lua.plain(lua.runtime.globals()[b"logged"]) == {}, "no error in the Lua"


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


@pytest.mark.parametrize("uid", [0, 64030])
def test_an_operators_partition_stands(lua: Lua, uid: int) -> None:
    assert modify(lua, RECORD, uid=uid, partition="cloud") == (0, {})
    assert modify(lua, RECORD, uid=uid, partition="cloud", tres_per_node="gres:vgpu:small") == (
        0,
        {"gres": "vgpu:small:1,vgpu_mem:1"},
    )


def cli(lua: Lua, kind: str, text: str | None, jobid: str | None = None) -> tuple[int, str | None]:
    options = lua.table(
        {key: value for key, value in (("type", kind), ("gres", text), ("jobid", jobid)) if value is not None}
    )
    code = lua.call("cli", options)
    return code, lua.plain(options).get("gres")


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("gres:vgpu:20gb", "vgpu:m20:1"),
        ("gres:VGPU", "vgpu:1g.10gb:1"),
        ("gres:gpu:1,gres:vgpu:1/4:2", "gpu:1,vgpu:q4:2"),
        ("gres:vgpu:m20:1,gres:vgpu_mem:2", "vgpu:m20:1"),
    ],
)
def test_the_client_translates_srun_and_salloc(lua: Lua, text: str, becomes: str) -> None:
    assert cli(lua, "srun", text) == (0, becomes)
    assert cli(lua, "salloc", text) == (0, becomes)
    assert cli(lua, "sbatch", text)[0] == 0


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("gres:vgpu:20GB", None),
        ("gres:gpu:1,gres:vgpu:1/4:2", None),
        ("gres/gpu:1,gres/vgpu", None),
        ("gres:vgpu:m20:1,gres:vgpu_mem:2", None),
        ("gres:gpu:1", None),
        ("gres:VGPU:20GB:2", "vgpu:20GB:2"),
        ("gres:gres/vgpu:1", "vgpu:1"),
        ("gres/gres:vgpu=2", "vgpu:2"),
        ("gres: vgpu :20gb", "vgpu:20gb"),
        ("gres:vgpu: 20gb", "vgpu:20gb"),
        ("gres:Vgpu:1,gres:gpu:1", "gpu:1,vgpu:1"),
    ],
)
def test_the_client_names_the_gres_as_slurm_wants_it_and_keeps_the_words(
    lua: Lua, text: str, becomes: str | None
) -> None:
    assert cli(lua, "sbatch", text) == (0, becomes or text)


@pytest.mark.parametrize(
    ("text", "says"), [("gres:vgpu:", "did you mean vgpu?"), ("gres:vgpu:1,gres:vgpu:2g.20gb", "one class")]
)
def test_the_client_says_what_slurms_own_refusal_does_not(lua: Lua, text: str, says: str) -> None:
    assert cli(lua, "sbatch", text)[0] == REFUSED
    assert says in str(lua.plain(lua.runtime.globals()[b"logged"]))


def test_a_number_alone_in_a_step_means_the_jobs_own_class(lua: Lua) -> None:
    assert cli(lua, "srun", "gres:vgpu:2", "17") == (0, "vgpu:2")
    assert cli(lua, "srun", "gres:gpu:1,gres:VGPU", "17") == (0, "gpu:1,vgpu:1")
    assert cli(lua, "srun", "gres:vgpu:20gb", "17") == (0, "vgpu:m20:1")


def test_the_client_leaves_the_rest_alone(lua: Lua) -> None:
    for text in (None, "none", "gres:gpu:1", "gres:none"):
        assert cli(lua, "srun", text, "17") == (0, text)
    assert lua.call("cli", lua.runtime.execute(b"return setmetatable({}, {__index = function() error('no') end})")) == 0


def test_the_client_refuses_what_is_wrong(lua: Lua) -> None:
    assert cli(lua, "srun", "gres:vgpu:2g.10gb")[0] == REFUSED
    assert "did you mean 2g.20gb?" in str(lua.plain(lua.runtime.globals()[b"logged"]))


def test_a_client_without_a_catalogue(lua: Lua, tmp_path: Path) -> None:
    (tmp_path / "catalogue").unlink()
    assert cli(lua, "srun", "gres:vgpu:20gb") == (0, "gres:vgpu:20gb"), "job_submit says what to type"
    assert cli(lua, "srun", "gres:vgpu:2", "17") == (0, "vgpu:2")
    assert cli(lua, "srun", "gres:vgpu:20gb:2", "17")[0] == REFUSED
    assert "inside a job write --gres=vgpu:2" in str(lua.plain(lua.runtime.globals()[b"logged"]))


def test_the_ready_files_carry_the_sites_path() -> None:
    made = scripts(catalogue="/srv/pool/catalogue")
    assert tuple(made) == FILES
    assert all('"/srv/pool/catalogue"' in text and "/var/lib/vgpu/catalogue" not in text for text in made.values())


@pytest.mark.parametrize("path", ["catalogue", '/a"b', "/a\nb", "/a\\b"])
def test_a_path_that_would_break_the_lua_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        scripts(catalogue=path)
