"""A file is the old one or the new one, whenever its writer dies."""

import os
import stat
from pathlib import Path

import pytest

from slurm_plugin import atomic


def test_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data, mode in ((b"old", 0o600), (b"new", 0o644)):
        atomic.write(path, data, mode=mode)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (data, mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_without_a_folder_is_in_the_working_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    atomic.write(Path("file"), b"new", mode=0o600)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    seen: list[list[bytes]] = []
    atomic.write(path, b"old", mode=0o600)
    atomic.write(
        path,
        b"new",
        mode=0o600,
        lasting=False,
        beside=lambda: seen.append([path.read_bytes(), *(f.read_bytes() for f in tmp_path.glob(f"{atomic.STRAY}*"))]),
    )
    assert seen == [[b"old", b"new"]]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_disk_that_says_no_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    atomic.write(path, b"old", mode=0o644)

    def refuse(*_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="Input/output error"):
        atomic.write(path, b"new", mode=0o644)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
