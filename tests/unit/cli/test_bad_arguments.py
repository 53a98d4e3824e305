"""Whatever is typed behind a command ends in an exit code and a line to read, never in a traceback."""

import re
from pathlib import Path

import pytest
from typer.core import TyperGroup, TyperOption

from slurm_plugin.cli import main
from tests.unit.cli.commands import every_command

BAD = ("", " ", "-1", "17", "99999999999999999999", "..", "a/b", "/", "\n", "\x1b[31m", "é", "n1:", ":0", "%s", "{}")
BAD_VALUES = ("", "x", "-1", "99999999999999999999", "1e400", "/", "\x1b[31m")
CODES = range(1, 8)
# What pydantic, Python and the kernel call a mistake.
NOT_OURS = re.compile(r"Input should|Value error|[Uu]nable to parse|Errno|codec can't|Traceback|invalid literal")


EVERY = {path: one for path, one in every_command(main.app).items() if not isinstance(one, TyperGroup)}
ASKS_NOTHING = {("lab", "list"), ("lab", "down"), ("lab", "up")}  # may well succeed: lab up starts one, with right ones


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VGPU_POOL_CONFIG", str(tmp_path / "none.yaml"))
    monkeypatch.setenv("VGPU_LAB_DIR", str(tmp_path))
    for name in ("VGPU_CONTROLLER", "VGPU_LAB", "VGPU_JSON", "VGPU_DRY_RUN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("path", sorted(EVERY.keys() - ASKS_NOTHING), ids=" ".join)
def test_bad_arguments(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    wants = [one for one in EVERY[path].params if one.param_type_name == "argument" and one.required]
    for bad in BAD:
        for argv in ([*path, *[bad] * len(wants)], [*path, *[bad] * (len(wants) + 1)], [*path, f"--{bad}"]):
            assert main.run(argv) in CODES, argv
            err = capsys.readouterr().err
            assert err.startswith(("error: ", "warning: ")), argv
            assert "hint: " in err or err.count("\n") == 1, argv
            assert not NOT_OURS.search(err), argv


@pytest.mark.parametrize("path", sorted(EVERY.keys() - {("lab", "down")}), ids=" ".join)
def test_bad_options_of_a_command(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """What takes nearly anything, such as a folder, may be right."""
    params = EVERY[path].params
    options = [one for one in params if isinstance(one, TyperOption) and not one.is_flag]
    wants = ["1" for one in params if one.param_type_name == "argument" and one.required]
    dry = ["--dry-run"] if any("--dry-run" in one.opts for one in params) else []
    for option in options:
        for bad in BAD_VALUES:
            argv = [*path, *wants, *dry, f"{option.opts[0]}={bad}"]
            code, err = main.run(argv), capsys.readouterr().err
            assert err.startswith(("error: ", "warning: ")) if code else not err, argv
            assert not NOT_OURS.search(err), argv


@pytest.mark.parametrize("name", [bad for bad in BAD if bad != "n1:"])
def test_labs_of_any_name_are_not_taken_down(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "down", f"--name={name}"]) == 7
    assert "is no name for a lab" in capsys.readouterr().err
    assert tmp_path.is_dir()


@pytest.mark.parametrize("bad", BAD)
def test_options_of_vgpu(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--config", "--controller", "--controller-uid", "--munge-socket"):
        assert main.run([f"{option}={bad}", "status"]) in CODES, option
        assert "error: " in capsys.readouterr().err
    folder = tmp_path / "folder.yaml"
    folder.mkdir(exist_ok=True)
    assert main.run(["--config", str(folder), "plan"]) == 2
