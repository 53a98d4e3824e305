import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from slurm_plugin.nvml import holders as module
from slurm_plugin.nvml.holders import MOST_NAMED, describe, holders, open_in

HOLD = 'exec 3< "$1"; printf %s "$2" > /proc/self/comm; echo held; read -r wait'


@contextmanager
def process_with(device: Path, name: str = "monitor") -> Iterator[int]:
    with subprocess.Popen(["sh", "-c", HOLD, "sh", device, name], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.kill()


def device(folder: Path) -> Path:
    path = folder / "nvidia0"
    path.touch()
    return path


def test_nobody_holds_a_device_that_only_we_have_open(tmp_path: Path) -> None:
    with device(tmp_path).open():
        assert holders([tmp_path / "nvidia0", tmp_path / "not-there"]) == ""


def test_who_holds_it_is_named_through_any_link_to_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(device(tmp_path))
    with process_with(tmp_path / "nvidia0", "nv-hostengine") as pid:
        assert holders([link]).startswith(f"pid {pid} (nv-hostengine")


def test_a_name_that_would_forge_lines_or_colours_does_not(tmp_path: Path) -> None:
    with process_with(device(tmp_path), "a\n\x1b[31mb") as pid:
        assert holders([tmp_path / "nvidia0"]).startswith(f"pid {pid} (a???31mb")


def test_many_holders_are_counted_beyond_the_first(tmp_path: Path) -> None:
    path = device(tmp_path)
    with ExitStack() as stack:
        pids = [stack.enter_context(process_with(path)) for _ in range(MOST_NAMED + 2)]
        told = holders([path])
    assert told.count("pid ") == MOST_NAMED
    assert told.endswith("2 more")
    assert str(os.getpid()) not in told.replace(",", " ").split()
    assert any(str(pid) in told for pid in pids)


def test_each_file_has_its_own_holders(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("cap1", "cap2", "cap3"))
    for path in (first, second, third):
        path.touch()
    with process_with(first) as one, process_with(second) as two:
        found = open_in({"a": (first, second), "b": (second,), "c": (third, tmp_path / "not-there")})
    assert found == {"a": tuple(sorted((one, two))), "b": (two,)}


def test_another_file_of_the_same_name_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "cap1", tmp_path / "other/cap1"):
        path.touch()
    with process_with(tmp_path / "other/cap1"):
        assert open_in({"a": (tmp_path / "cap1",)}) == {}


def test_a_link_of_the_same_name_elsewhere_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "cap1").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/cap1").hardlink_to(tmp_path / "cap1")
    with process_with(tmp_path / "other/cap1") as pid:
        assert open_in({"a": (tmp_path / "cap1",)}) == {"a": (pid,)}


def test_a_file_that_was_replaced_since_is_still_held(tmp_path: Path) -> None:
    """The next instance has the same minor number: what is open of the last one opens it."""
    (tmp_path / "cap1").touch()
    with process_with(tmp_path / "cap1") as pid:
        (tmp_path / "new").touch()
        (tmp_path / "new").replace(tmp_path / "cap1")
        assert open_in({"a": (tmp_path / "cap1",)}) == {"a": (pid,)}


def test_a_process_is_told_with_its_name_and_user_and_no_directory_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pwd, "getpwuid", asked.append)
    with process_with(device(tmp_path), "trainer") as pid:
        assert describe(pid) == f"pid {pid} (trainer, uid 0)"
    assert describe(2**22 + 1) == f"pid {2**22 + 1}"
    assert asked == []


@pytest.mark.parametrize("name", ["GPU is lost", "x (NVML 15), y", "a, b.service)", "held by pid 1", "two\nlines"])
def test_a_name_that_a_process_chose_is_one_word_among_ours(tmp_path: Path, name: str) -> None:
    with process_with(device(tmp_path), name) as pid:
        told = describe(pid).removeprefix(f"pid {pid} (").removesuffix(", uid 0)")
    assert told.replace("?", "").replace(".", "").isalnum(), told


def proc(folder: Path, *, cgroup: str, above: str) -> None:
    """Process 20, below process 10."""
    for pid, name, parent in ((20, "python3", 10), (10, above, 1)):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "comm").write_text(f"{name}\n")
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0")
        (folder / str(pid) / "status").write_text("Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
        (folder / str(pid) / "cgroup").write_text(cgroup)


@pytest.mark.parametrize(
    ("cgroup", "above", "told"),
    [
        ("0::/system.slice/nvidia-dcgm.service\n", "sh", "nvidia-dcgm.service"),
        ("0::/system.slice/system-mon.slice/mon@1.service/sub\n", "sh", "mon@1.service"),
        ("9:devices:/\n1:name=systemd:/system.slice/slurmd.service\n", "sh", "uid 1000"),  # cgroup v1, linuxproc
        ("9:devices:/\n1:name=systemd:/system.slice/cluster.service\n", "slurmstepd", "uid 1000"),
        ("0::/system.slice/slurmstepd.scope/job_3/step_0/user/task_0\n", "slurmstepd", "uid 1000"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/munge.service\n", "sh", "uid 1000"),
    ],
)
def test_a_service_is_named_only_where_it_can_be_stopped_without_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, above: str, told: str
) -> None:
    monkeypatch.setattr(module, "PROC", tmp_path)
    proc(tmp_path, cgroup=cgroup, above=above)
    assert describe(20) == f"pid 20 (python3, {told})"
