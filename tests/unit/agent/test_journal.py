import json
from pathlib import Path

import pytest

from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.layout import Record

ONE = Record(gpu="GPU-a", had=frozenset({("1g.20gb", 0), ("3g.40gb", 4)}), wanted=frozenset({("7g.80gb", 0)}))
OTHER = Record(gpu="GPU-b", had=frozenset(), wanted=frozenset())


def journal(folder: Path) -> Journal:
    journal = Journal(folder / "gpus")
    journal.open()
    return journal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    there = journal(tmp_path)
    there.put(ONE)
    there.put(OTHER)
    return tmp_path / "gpus/GPU-a.json"


def test_what_was_put_comes_back(file: Path, tmp_path: Path) -> None:
    again = journal(tmp_path)
    assert (again.get("GPU-a"), again.get("GPU-b"), again.get("GPU-c")) == (ONE, OTHER, None)
    assert sorted(again) == ["GPU-a", "GPU-b"]
    assert again.refused == {}
    again.drop("GPU-a")
    assert journal(tmp_path).get("GPU-a") is None


def test_nobody_but_root_can_read_it(file: Path) -> None:
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_record_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    places: list[str] = []
    there = Journal(tmp_path / "gpus", at=places.append)
    there.open()
    for _ in range(3):
        there.put(ONE)
    assert places == [f"write gpus/GPU-a.json: {when}" for when in ("before", "beside", "after")]


def refused(folder: Path) -> str:
    again = journal(folder)
    assert again.get("GPU-a") is None
    assert not again.is_new("GPU-a"), "it is not taken for a GPU that comes into the pool"
    assert again.get("GPU-b") == OTHER, "the others are read"
    assert (folder / "gpus/GPU-a.json").exists()
    return again.refused["GPU-a"]


def test_a_file_torn_anywhere_is_refused_and_stays(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert str(file) in refused(tmp_path)


def test_a_file_with_any_byte_changed_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for nth in range(len(whole)):
        if whole[nth : nth + 1] != b" ":  # between two values of JSON it means nothing
            file.write_bytes(whole[:nth] + bytes([whole[nth] ^ 1]) + whole[nth + 1 :])
            assert refused(tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", "7", '"a"', "null", "{}", "[" * 100_000, '{"sum": null, "version": 1}', "\udcff"]
)
def test_a_file_of_something_else_is_refused(file: Path, tmp_path: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "remove the file" in refused(tmp_path)


def test_a_newer_version_and_another_gpus_file_are_refused(file: Path, tmp_path: Path) -> None:
    facts = json.loads(file.read_text())
    file.write_text(json.dumps(facts | {"version": 2}))
    assert "version 2, not 1" in refused(tmp_path)
    file.write_bytes((file.parent / "GPU-b.json").read_bytes())
    assert "it is of GPU 'GPU-b'" in refused(tmp_path)


def test_nothing_is_written_over_a_refused_file_until_it_is_gone(file: Path, tmp_path: Path) -> None:
    file.write_text("{")
    there = journal(tmp_path)
    with pytest.raises(OSError, match="can't be believed"):
        there.put(ONE)
    assert file.read_text() == "{"
    there.look_again()
    assert "GPU-a" in there.refused
    file.unlink()
    there.look_again()
    assert there.is_new("GPU-a")
    there.put(ONE)
    assert journal(tmp_path).get("GPU-a") == ONE


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path) -> None:
    def full(place: str) -> None:
        if place.endswith("beside") and armed:
            raise OSError(28, "no space left")

    armed = False
    there = Journal(tmp_path / "gpus", at=full)
    there.open()
    there.put(OTHER)
    armed = True
    with pytest.raises(OSError, match="no space"):
        there.put(Record(gpu="GPU-b", had=ONE.had, wanted=ONE.had))
    assert there.get("GPU-b") == OTHER
    assert journal(tmp_path).get("GPU-b") == OTHER
    assert not list((tmp_path / "gpus").glob(".new-*"))
