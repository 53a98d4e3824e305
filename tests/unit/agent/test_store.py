import os
from pathlib import Path

import pytest

from slurm_plugin.agent.store import Store
from slurm_plugin.agent.terms import Terms
from slurm_plugin.model import RunKey
from tests.unit.agent.world import grant


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "state")
    store.open()
    return store


def test_grants_come_back_as_they_were_saved(store: Store, tmp_path: Path) -> None:
    store.save(grant(7, "MIG-a", "MIG-b", uid=1001, started_at=5))
    store.save(grant(8, "MIG-c"))
    store.delete(8)
    store.delete(9)
    again = Store(tmp_path / "state")
    again.open()
    assert again.grants()[0] == (grant(7, "MIG-a", "MIG-b", uid=1001, started_at=5),)


def test_nobody_but_root_can_read_the_state(store: Store, tmp_path: Path) -> None:
    store.save(grant(7, "MIG-a"))
    assert (tmp_path / "state/grants").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/grants/7.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job_id": "x"}', "\udcff", '"a"', "another job's"])
def test_a_file_that_makes_no_sense_stays_and_names_its_job(store: Store, tmp_path: Path, text: str) -> None:
    store.save(grant(7, "MIG-a"))
    anothers = (tmp_path / "state/grants/7.json").read_bytes()
    said = anothers if text == "another job's" else text.encode("utf-8", "surrogateescape")
    (tmp_path / "state/grants/9.json").write_bytes(said)
    for _ in range(2):
        assert store.grants() == ((grant(7, "MIG-a"),), frozenset({9}))


def test_a_file_that_is_no_jobs_is_set_aside(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state/grants/x.json").write_text("{")
    assert store.grants() == ((), frozenset())
    assert (tmp_path / "state/grants/x.bad").exists()


def test_a_file_that_can_not_be_read_is_not_taken_for_garbage(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state/grants/9.json").mkdir()
    with pytest.raises(OSError, match=r"9\.json"):
        store.grants()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fresh: str, _path: str) -> None:
        raise OSError(28, "no space left")

    store.save(grant(7, "MIG-a"))
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        store.save(grant(7, "MIG-b"))
    assert store.grants()[0] == (grant(7, "MIG-a"),)
    assert [path.name for path in (tmp_path / "state/grants").iterdir()] == ["7.json"]


def test_a_prolog_waits_for_no_disk_and_what_outlives_the_machine_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_fd: int) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(os, "fsync", broken)
    store.save(grant(7, "MIG-a"))
    assert store.grants()[0] == (grant(7, "MIG-a"),)
    with pytest.raises(OSError, match="no disk"):
        store.save_terms(Terms())


def test_a_mark_that_its_epilog_takes_away_meanwhile_stops_no_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RunKey(job_id=7, started_at=100, uid=1000)
    store.save_plain(kept)
    (tmp_path / "state/plain/8").write_text("no mark")
    read = Path.read_text

    def go(path: Path) -> str:
        text = read(path)
        if path.name == "8":
            path.unlink()
        return text

    monkeypatch.setattr(Path, "read_text", go)
    assert store.plain() == (kept,)
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter((folder / "7", folder / "8")))
    assert store.plain() == (kept,)


def test_what_a_crash_left_is_swept(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state/grants/.new-x").write_text("half")
    store.open()
    assert list((tmp_path / "state/grants").iterdir()) == []


def test_terms_and_leases_come_back_and_damage_is_taken_for_nothing(store: Store, tmp_path: Path) -> None:
    assert (store.terms(), store.leases()) == (Terms(), {})
    terms = Terms(classes={"m20": ("1g.20gb",)}, gpus=frozenset({"A"}), observe=True)
    store.save_terms(terms)
    store.save_leases({"12:345": ("MIG-a",)})
    assert (store.terms(), store.leases()) == (terms, {"12:345": ("MIG-a",)})
    (tmp_path / "state/terms.json").write_text("[]")
    (tmp_path / "state/leases.json").write_text("[]")
    assert (store.terms(), store.leases()) == (Terms(), {})
