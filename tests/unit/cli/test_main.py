"""The command line as a whole: how it starts, what it refuses, how it says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperOption

from federation.cli import main as fed
from slurm_plugin.cli import main, pool
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.errors import LinkError
from tests.unit.cli.commands import every_command
from tests.unit.cli.pools import GPU, status

HEAVY = {
    "grpc",
    "google",
    "pydantic",
    "pydantic_core",
    "yaml",
    "rich",
    "asyncio",
    "pynvml",
    "cryptography",
    "ssl",
}
OURS = {
    "slurm_plugin",
    "slurm_plugin.cli",
    "slurm_plugin.cli.lab",
    "slurm_plugin.cli.main",
    "slurm_plugin.cli.operate",
    "slurm_plugin.cli.options",
    "slurm_plugin.cli.output",
    "slurm_plugin.cli.pool",
    "slurm_plugin.cli.setup",
    "slurm_plugin.cli.top",
    "slurm_plugin.cli.users",
    "slurm_plugin.cli.view",
    "slurm_plugin.errors",
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pool of this machine is meant."""
    monkeypatch.setenv("VGPU_POOL_CONFIG", str(tmp_path / "none.yaml"))
    for name in ("VGPU_CONTROLLER", "VGPU_JSON", "VGPU_DRY_RUN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that tells of the pool in `pools`."""
    monkeypatch.setattr(pool, "_pool", lambda _where: pool_view(status()))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from slurm_plugin.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "print('\\n' + ' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert sorted(HEAVY & {name.split(".")[0] for name in loaded}) == []
    assert {name for name in loaded if name.startswith("slurm_plugin")} == OURS


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("lab", "render", "plan", "apply", "pause", "history", "top", "status", "show", "doctor"):
        assert f"\n  {name} " in out


def test_every_option_has_an_environment_variable_and_a_help_text() -> None:
    for command in every_command(main.app).values():
        assert command.help
        for parameter in command.params:
            if isinstance(parameter, TyperOption) and not {"--help", "--version"} & set(parameter.opts):
                assert str(parameter.envvar).startswith("VGPU_"), (command.name, parameter.opts)
                assert parameter.help, (command.name, parameter.opts)


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (["stats"], 2, "error: No such command 'stats'"),
        (["status", "--jsno"], 2, "error: No such option"),
        (["show", "job", "x"], 3, "error: 'x' is no job id"),
        (["show", "job", "41_x"], 3, "error: '41_x' is no job id"),
        (["explain", "41_[1,x]"], 3, "error: '41_[1,x]' is no job id"),
        (
            ["explain", "41+1"],
            3,
            "error: '41+1' is no job id\nhint: each part has a number of its own: squeue -h -j 41+1",
        ),
        (["explain", "41_[1-9,...]"], 2, "error: no pool file that can be read"),
        (["show", "job", "-1"], 2, "error: "),
        (["status"], 2, "error: no pool file that can be read: "),
        (["--controller", "127.0.0.1:1", "status"], 6, "error: no controller at 127.0.0.1:1"),
        (["--controller", "nonsense", "status"], 2, "error: 'nonsense' is not HOST:PORT"),
        (["--controller", "127.0.0.1", "status"], 2, "error: '127.0.0.1' is not HOST:PORT"),
        (["--controller", "host:99999", "status"], 2, "error: 'host:99999' is not HOST:PORT"),
        (["plan", "--policy", "/nonexistent\nfile"], 2, "error: "),
        (["lab", "status", "--name", "none-such", "--dir", "/nonexistent"], 7, "error: there is no lab none-such"),
        (["lab", "up", "--nodes", "0"], 2, "error: Invalid value for '--nodes' (env var: 'VGPU_LAB_NODES'): must be 1"),
        (
            ["history", "--limit", "x"],
            2,
            "error: Invalid value for '--limit' (env var: 'VGPU_HISTORY_LIMIT'): must be a",
        ),
        (
            ["apply", "--wait", "x"],
            2,
            "error: Invalid value for '--wait' (env var: 'VGPU_APPLY_WAIT'): must be a number",
        ),
        (["render", "nope"], 2, "error: Invalid value for '[PART]': 'nope' is not one of 'all', 'slurm.conf', "),
        (["lab", "up", "--dry-run", "--product", "h101"], 2, "error: no GPU product 'h101' is known"),
    ],
)
def test_a_users_mistake_is_two_lines_and_an_exit_code(
    argv: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(error)
    assert "Traceback" not in err


@pytest.mark.parametrize("group", [[], ["lab"], ["show"]])
def test_what_a_command_does_is_told_whole_in_80_columns(
    group: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(commands) > 2
    assert [line for line in commands if line.endswith("...") or len(line) > 80] == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_that_nobody_reads_has_a_code_of_its_own(unbuffered: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-c", "from slurm_plugin.cli.main import main; main()", "lab", "list", f"--dir={tmp_path}"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, env=env, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (main.NOBODY_READS, b"")


def test_a_wrong_pool_file_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("version: 1\npool: hpc\npartitons: [gpu]\nnodes:\n  - hosts: n1\n")
    assert main.run(["--config", str(file), "render"]) == 2
    assert f"{file}:" in capsys.readouterr().err


def test_an_option_of_vgpu_behind_the_command_is_told_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--config", "x"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "hint: write it before the command: vgpu --config ..."


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vgpu ")


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_a_closed_pipe_is_no_traceback() -> None:
    code = "import sys; from slurm_plugin.cli.main import run; sys.exit(run(['--help']))"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; {sys.executable} -c "{code}" | true; echo $?'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr


def test_status_as_json_is_one_document(told: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["kind"], document["pool"]) == (1, "status", "hpc")
    assert document["nodes"][0]["gpus"][0]["slices"][0]["jobs"] == [12]


def test_json_can_be_asked_for_by_environment(
    told: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VGPU_JSON", "1")
    assert main.run(["show", "node", "n1"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "node"


@pytest.mark.parametrize("name", ["n1:0", GPU])
def test_a_gpu_is_found_by_place_or_uuid(told: None, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show", "gpu", name]) == 0
    assert "NVIDIA H100 80GB HBM3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["show", "gpu", "n1:7"], "vgpu status"),
        (["show", "gpu", "n9:0"], "its nodes: n1"),
        (["show", "node", "n\n9"], "its nodes: n1"),
        (["show", "job", "99"], "squeue -j 99"),
    ],
)
def test_what_the_pool_does_not_have_is_refused_with_a_hint(
    told: None, argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(argv) == 3
    error, hinted = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert hint in hinted


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_where: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_pool", interrupted)
    assert main.run(["status"]) == main.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_an_unreachable_controller_is_a_link_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_where: object) -> None:
        raise LinkError("gone", hint="look")

    monkeypatch.setattr(pool, "_pool", away)
    assert main.run(["status"]) == LinkError.exit_code


def test_fed_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fed.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fed ")
    assert fed.run([]) == 0
    assert "run here or at another site, once" in capsys.readouterr().out
    assert fed.run(["up"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
