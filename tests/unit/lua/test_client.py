"""What vgpu.lua does to a request in srun, salloc and sbatch, before Slurm has seen it."""

from pathlib import Path

import pytest

from tests.unit.lua.calls import REFUSED, cli
from tests.unit.lua.harness import Lua


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
