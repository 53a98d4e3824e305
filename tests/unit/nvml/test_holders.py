import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slurm_plugin.nvml.holders import MOST_NAMED, holders

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
        assert holders([tmp_path / "nvidia0"]).startswith(f"pid {pid} (a??[31mb")


def test_many_holders_are_counted_beyond_the_first(tmp_path: Path) -> None:
    path = device(tmp_path)
    with ExitStack() as stack:
        pids = [stack.enter_context(process_with(path)) for _ in range(MOST_NAMED + 2)]
        told = holders([path])
    assert told.count("pid ") == MOST_NAMED
    assert told.endswith("2 more")
    assert str(os.getpid()) not in told.replace(",", " ").split()
    assert any(str(pid) in told for pid in pids)
