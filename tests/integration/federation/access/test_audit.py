"""The audit log: every line whole, none forged, none lost without a word."""

import errno
import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation.access.audit import MAX_TEXT, Audit, Entry
from federation.errors import ConfigError


def entry(**changed: Any) -> Entry:
    return replace(Entry(at=1.5, who="edge", what="submit", verdict=False, why="unmapped"), **changed)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_a_line_says_who_what_and_why(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    assert audit.write(entry(about=b"job \xff"))
    audit.close()
    assert path.stat().st_mode & 0o777 == 0o600
    (line,) = lines(path)
    told = {"at": 1.5, "who": "edge", "what": "submit", "about": "job \\xff", "verdict": False, "why": "unmapped"}
    assert line == told


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60), st.binary(max_size=60))
def test_no_text_forges_a_line(tmp_path: Path, text: str, data: bytes) -> None:
    path = tmp_path / "audit.log"
    path.unlink(missing_ok=True)
    audit = Audit(path)
    audit.write(entry(who=text, about=data, why=text))
    audit.close()
    raw = path.read_bytes()
    assert raw.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in raw[:-1])
    assert lines(path)[0]["who"] == text


def test_long_texts_are_cut(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.log")
    audit.write(entry(why="x" * 1_000_000, about=b"\xff" * 1_000_000))
    audit.close()
    (line,) = lines(tmp_path / "audit.log")
    assert line["why"] == "x" * MAX_TEXT + "..."
    assert len(str(line["about"])) == MAX_TEXT + 3


def test_full_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path, max_bytes=1000, keep=2)
    for nth in range(60):
        audit.write(entry(at=float(nth)))
    audit.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = [line["at"] for name in reversed(names) for line in lines(tmp_path / name)]
    assert kept == [float(nth) for nth in range(60 - len(kept), 60)]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in names)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in names)


@pytest.mark.parametrize("fails", ["audit.log.new", "audit.log.3", "audit.log.2", "audit.log.1", "audit.log"])
def test_where_a_full_file_can_not_be_put_aside_no_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path, max_bytes=1000, keep=3)
    while not (tmp_path / "audit.log.3").exists() or path.stat().st_size < 900:
        audit.write(entry())
    before = {one.read_bytes() for one in tmp_path.iterdir() if one.name != "audit.log.3"}
    with monkeypatch.context() as patch:
        _break(patch, fails)
        assert not any(audit.write(entry()) for _ in range(5))
        assert before <= {one.read_bytes() for one in tmp_path.iterdir()}
    assert audit.write(entry())
    audit.close()
    assert before <= {one.read_bytes() for one in tmp_path.iterdir() if one != path}
    assert [line["lost"] for line in lines(path)] == [5]


def _break(patch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing gets that name, neither a new file nor an old one."""
    opened, renamed = os.open, Path.rename

    def check(path: Path) -> Path:
        if path.name == name:
            raise OSError(errno.EMFILE, "Too many open files")
        return path

    patch.setattr(os, "open", lambda path, *rest: opened(check(Path(path)), *rest))
    patch.setattr(Path, "rename", lambda old, new: renamed(old, check(new)))


def test_half_a_line_of_a_killed_daemon_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"at": 1, "who": "ed')
    path.chmod(0o600)
    audit = Audit(path)
    audit.write(entry())
    audit.close()
    assert json.loads(path.read_text().splitlines()[-1])["who"] == "edge"


def test_what_could_not_be_written_is_counted_and_told(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write(entry())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))  # ten bytes more, then no room
    try:
        assert not audit.write(entry())
        assert not audit.write(entry())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert audit.write(entry(who="next"))
    audit.close()
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["who"], last["lost"]) == ("next", 2)


def test_places_where_no_audit_log_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "open").write_bytes(b"")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "one").write_bytes(b"")
    (tmp_path / "one").chmod(0o600)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for name in ("link", "fifo", "open", "two", "shared/audit.log", "none/audit.log"):
        with pytest.raises(ConfigError):
            Audit(tmp_path / name)
