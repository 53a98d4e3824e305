"""A journal is opened safely or not at all, and who reads the refusal knows what to do."""

import sqlite3
from pathlib import Path

import pytest

from federation.errors import StoreUnfit
from federation.store.opening import APPLICATION_ID, connect
from federation.store.queries import migrations
from tests.integration.federation.store.rig import JOURNAL, add, numbers, opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fed.db"


def test_a_new_one_syncs_each_commit_and_is_ours_alone(path: Path) -> None:
    connection = connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    assert connection.execute("PRAGMA user_version").fetchone()[0] == len(migrations())
    assert path.stat().st_mode & 0o777 == 0o600
    connection.close()


def test_it_keeps_what_it_has_and_its_name(path: Path) -> None:
    store = opened(path)
    with store.transaction():
        add(store, 1)
    store.close()
    again = opened(path)
    assert (again.journal, numbers(again)) == (JOURNAL, {1})
    again.close()


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(path: Path, kind: str) -> None:
    mountinfo = path.with_name("mountinfo")
    mountinfo.write_text(
        f"22 1 0:1 / / rw - ext4 /dev/vda rw\n23 22 0:2 / {path.parent} rw,noatime shared:1 - {kind} s:/x rw\n"
    )
    with pytest.raises(StoreUnfit, match=f"is on {kind}") as raised:
        connect(path, mountinfo=mountinfo)
    assert "local disk" in raised.value.hint
    assert not path.exists()


def test_a_newer_one_is_refused_and_not_touched(path: Path) -> None:
    connection = connect(path)
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnfit, match="version 77, and this release knows") as raised:
        connect(path)
    assert "newer release" in raised.value.hint
    assert path.read_bytes() == before


def test_another_program_s_file_is_refused(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreUnfit, match="another program's"):
        connect(path)


def damaged(path: Path, how: str) -> None:
    store = opened(path)
    with store.transaction():
        for number in range(500):
            add(store, number, bytes(500))
    store.close()
    data = bytearray(path.read_bytes())
    if how == "no database":
        data[:100] = b"x" * 100
    elif how == "cut short":
        del data[8192:]
    else:
        data[4096 : 20 * 4096] = b"\xff" * (19 * 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["no database", "cut short", "overwritten"])
def test_a_damaged_one_is_refused_and_kept(path: Path, how: str) -> None:
    damaged(path, how)
    before = path.read_bytes()
    with pytest.raises(StoreUnfit, match="damaged") as raised:
        connect(path)
    assert "fed doctor" in raised.value.hint
    assert path.read_bytes() == before


def test_two_daemons_on_one_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("federation.store.opening.BUSY_S", 0.05)
    first = opened(path)
    with pytest.raises(StoreUnfit, match="open in another daemon"):
        connect(path)
    first.close()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnfit, match="can't be opened"):
        connect(tmp_path / "nowhere/fed.db")


def test_a_migration_that_did_not_end_is_done_anew(path: Path) -> None:
    def die(place: str) -> None:
        if place == "migration 1: after":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connect(path, at=die)
    store = opened(path)
    assert numbers(store) == set()
    store.close()
