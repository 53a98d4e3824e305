"""The history on disk: whole lines whatever dies, two files at the most, and the newest that are asked for."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_plugin.controller import history_file
from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.history import LIMIT_MAX, Entry, What

WRITER = """
import sys
from pathlib import Path
from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.history import Entry
file, nth = HistoryFile(Path(sys.argv[1])), 0
while True:
    file.append([Entry(at=float(nth + each), what="changed", why="x" * 500) for each in range(50)])
    nth += 50
    print(nth, flush=True)
"""


def entry(at: float, node: str = "n1") -> Entry:
    return Entry(at=at, what=What.CHANGED, node=node)


def times(file: HistoryFile, node: str = "", since: float = 0.0, limit: int = LIMIT_MAX) -> list[float]:
    return [one.at for one in file.read(node, since, limit)[0]]


def test_what_was_appended_is_read_by_the_next_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    HistoryFile(folder).append([entry(1.0), entry(2.0)])
    HistoryFile(folder).append([entry(3.0)])
    assert times(HistoryFile(folder)) == [1.0, 2.0, 3.0]
    assert stat.S_IMODE((folder / "history.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_was_written_yet(tmp_path: Path) -> None:
    assert HistoryFile(tmp_path / "none").read("", 0.0, 10) == ([], False)


def test_the_newest_of_a_node_since_a_time(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    file.append([entry(float(at), f"n{at % 2}") for at in range(20)])
    assert times(file, "n1", since=7.0) == [7.0, 9.0, 11.0, 13.0, 15.0, 17.0, 19.0]
    assert file.read("n1", 0.0, 2) == ([entry(17.0), entry(19.0)], True)
    assert file.read("n1", 17.0, 2) == ([entry(17.0), entry(19.0)], False)
    assert times(file, "n") == []


def test_a_clock_that_was_put_back_hides_nothing(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    file.append([entry(5000.0), entry(4000.0), entry(5001.0)])
    assert times(file, since=5000.0) == [5000.0, 5001.0]


def test_a_node_of_any_name_is_found(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    names = ['a"b', "ü", "n1", "n11"]
    file.append([entry(float(nth), name) for nth, name in enumerate(names)])
    assert [times(file, name) for name in names] == [[0.0], [1.0], [2.0], [3.0]]


def test_no_answer_is_longer_than_its_bound(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    file.append([entry(float(at)) for at in range(LIMIT_MAX + 5)])
    found, more = file.read("", 0.0, 10 * LIMIT_MAX)
    assert (len(found), found[-1].at, more) == (LIMIT_MAX, LIMIT_MAX + 4.0, True)


def test_a_full_file_is_kept_once_and_then_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "FILE_BYTES", 1000)
    file = HistoryFile(tmp_path)
    for at in range(200):
        file.append([entry(float(at))])
    kept = times(file)
    assert kept == [float(at) for at in range(200 - len(kept), 200)]
    assert len(kept) > 15
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_torn_line_costs_itself_and_no_other(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    file.append([entry(1.0)])
    with (tmp_path / "history.jsonl").open("a") as text:
        text.write('{"at":2.0,"what":"chan')
    assert times(file) == [1.0]
    file.append([entry(3.0)])
    assert times(file) == [1.0, 3.0]


def test_a_writer_that_is_killed_leaves_whole_lines_and_all_it_told_of(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(4)][-1]
        writer.send_signal(signal.SIGKILL)
        told = max([told, *map(int, writer.stdout.read().split())])
    file = HistoryFile(tmp_path)
    found = times(file)
    assert found == [float(at) for at in range(len(found))]
    assert len(found) >= told
    file.append([entry(1e6)])
    assert times(file)[-1] == 1e6


def test_when_the_disk_is_full_nothing_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = HistoryFile(tmp_path)
    file.append([entry(1.0)])

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            file.append([entry(2.0), entry(3.0)])
    assert times(file) == [1.0]
    file.append([entry(2.0), entry(3.0)])
    assert times(file) == [1.0, 2.0, 3.0]
