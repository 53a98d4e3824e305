"""`vgpu lab as`: a command of a user's, with the lab's variables and in a folder of his own."""

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_plugin.cli import main
from slurm_plugin.lab.site import FILE_NAME, to_text
from tests.unit.lab.labs import lab

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hpc").mkdir()
    (tmp_path / "hpc" / FILE_NAME).write_text(to_text(lab(tmp_path / "hpc")))
    monkeypatch.setenv("VGPU_LAB_DIR", str(tmp_path))
    monkeypatch.delenv("VGPU_LAB", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


@pytest.mark.parametrize(("typed", "run"), [(["squeue", "--name=a b", "--help"],) * 2, ([], ["bash"])])
def test_a_command_runs_as_this_user_in_a_folder_of_his_own(
    typed: list[str], run: list[str], labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[Sequence[str], Mapping[str, str], Path]] = []
    monkeypatch.setattr(os, "execvpe", lambda _, argv, env: became.append((argv, env, Path.cwd())))
    monkeypatch.chdir(labs)
    assert main.run(["lab", "as", ME, *typed]) == 0
    [(argv, env, folder)] = became
    assert (argv[0], list(argv[argv.index("--") + 1 :])) == ("setpriv", run)
    assert f"--reuid={ME}" in argv
    assert folder == labs / "hpc/home" / ME
    assert (env["HOME"], env["USER"], env["SLURM_CONF"]) == (str(folder), ME, str(labs / "hpc/etc/slurm.conf"))


def test_whom_the_machine_does_not_have_is_an_error(labs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "as", "no such user", "squeue"]) == 7
    assert capsys.readouterr().err == "error: there is no user 'no such user'\nhint: a lab makes alice, bob, carol\n"
    assert not (labs / "hpc/home").exists()


def test_a_lab_that_is_not_there_is_an_error(labs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "as", "--name=gone", ME, "squeue"]) == 7
    assert capsys.readouterr().err.startswith("error: there is no lab gone")


def test_only_root_acts_as_somebody_else(
    labs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.run(["lab", "as", ME, "squeue"]) == 7
    assert "only root" in capsys.readouterr().err
    assert not (labs / "hpc/home").exists()
