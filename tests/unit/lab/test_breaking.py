"""Breaking a lab's simulated hardware needs no daemon: its files are enough."""

import os
from pathlib import Path

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab import commands, simgpu
from slurm_plugin.lab.commands import Fault
from slurm_plugin.lab.site import Lab, to_text
from tests.unit.lab.labs import lab


@pytest.fixture
def made(tmp_path: Path) -> Lab:
    described = lab(folder=tmp_path / "hpc", nodes=1)
    simgpu.create(described.sim_state("n1"), product="h100-80gb", count=2)
    described.file.write_text(to_text(described))
    return described


def test_a_gpu_is_lost_and_found_again(made: Lab, tmp_path: Path) -> None:
    commands.lose("hpc", "n1", 1, tmp_path)
    assert simgpu.snapshot(made.sim_state("n1")).lost == (False, True)
    commands.clear_faults("hpc", "n1", tmp_path)
    assert simgpu.snapshot(made.sim_state("n1")).lost == (False, False)


def test_a_fault_is_one_of_the_librarys_calls(made: Lab, tmp_path: Path) -> None:
    commands.fault("hpc", "n1", Fault(call="nvmlDeviceGetCount_v2", code=15, times=2), tmp_path)
    for call, hint in (
        ("nvmldevicegetcount", "did you mean nvmlDeviceGetCount_v2 or "),
        ("foo", "NVML's C names, such"),
    ):
        with pytest.raises(LabError, match=f"no call '{call}'") as told:
            commands.fault("hpc", "n1", Fault(call=call, code=999), tmp_path)
        assert told.value.hint.startswith(hint)
    with pytest.raises(LabError, match="does nothing") as told:
        commands.fault("hpc", "n1", Fault(call="nvmlDeviceGetCount_v2"), tmp_path)
    assert "--code" in told.value.hint


def test_a_gpu_that_the_lab_does_not_have_is_told(made: Lab, tmp_path: Path) -> None:
    last = made.spec.gpus - 1
    for gpu in (last + 1, 17, 63):
        with pytest.raises(LabError, match=f"has no GPU {gpu}") as told:
            commands.lose("hpc", "n1", gpu, tmp_path)
        assert told.value.hint == f"they are 0 to {last}"
        with pytest.raises(LabError, match=f"has no GPU {gpu}"):
            commands.fault("hpc", "n1", Fault(call="nvmlDeviceGetCount_v2", code=15, gpu=gpu), tmp_path)


@pytest.mark.parametrize("name", ["..", "", ".", "a/b", "/etc", "x\n"])
def test_a_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    base = tmp_path / "labs"
    base.mkdir()
    for act in (commands.down, commands.load, commands.status):
        with pytest.raises(LabError, match="is no name for a lab"):
            act(name, base)
    assert base.is_dir()


def test_a_lab_of_somebody_else_is_told_whose_it_is(made: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: made.folder.stat().st_uid + 1)
    for act in (
        lambda: commands.status("hpc", tmp_path),
        lambda: commands.kill("hpc", "slurmctld", tmp_path),
        lambda: commands.down("hpc", tmp_path),
        lambda: commands.lose("hpc", "n1", 0, tmp_path),
    ):
        with pytest.raises(LabError, match=r"runs lab hpc$"):
            act()
    assert made.folder.is_dir()


def test_a_node_or_a_lab_that_is_not_there_is_told_with_those_that_are(made: Lab, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no node 'n2'") as told:
        commands.lose("hpc", "n2", 0, tmp_path)
    assert told.value.hint == "one of n1"
    with pytest.raises(LabError, match=r"no lab other in .* \(labs there: hpc\)"):
        commands.lose("other", "n1", 0, tmp_path)


def test_a_lab_without_the_pool_has_no_gpu_to_break(tmp_path: Path) -> None:
    plain = lab(folder=tmp_path / "plain", pool=False)
    plain.folder.mkdir()
    plain.file.write_text(to_text(plain))
    with pytest.raises(LabError, match="has no GPUs"):
        commands.lose("plain", "n1", 0, tmp_path)


def test_what_a_supervisor_cannot_be_asked_is_told(made: Lab, tmp_path: Path) -> None:
    state = commands.status("hpc", tmp_path)
    assert state.supervisor == 0
    assert "does not answer" in state.lacks
