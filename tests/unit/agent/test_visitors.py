from pathlib import Path

import pytest

from slurm_plugin.agent import durable
from slurm_plugin.agent.visitors import Visitors


def opened(folder: Path) -> Visitors:
    visitors = Visitors(folder / "visitors.json")
    visitors.open()
    return visitors


def test_who_had_a_device_is_known_to_the_next_agent_until_he_has_left(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.note([3, 4], 1001)
    first.note([4, 5], 1002)
    second = opened(tmp_path)
    assert [second.of([minor]) for minor in (3, 4, 5, 6)] == [{1001}, {1001, 1002}, {1002}, set()]
    second.left([4, 5])
    second.note([6], 1003)
    assert opened(tmp_path).of(range(10)) == {1001, 1003}


def test_devices_without_a_number_are_nobodys(tmp_path: Path) -> None:
    visitors = opened(tmp_path)
    visitors.note([-1], 1001)
    assert visitors.of([-1]) == set()


def test_who_could_not_be_written_down_is_not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visitors = opened(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(OSError, match="no space"):
            visitors.note([3], 1001)
        assert visitors.of([3]) == set()
    visitors.note([3], 1001)
    assert opened(tmp_path).of([3]) == {1001}


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    visitors = opened(tmp_path)
    visitors.note([3, 4], 1001)
    (tmp_path / "visitors.json").unlink()
    visitors.note([4], 1001)
    assert not (tmp_path / "visitors.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"a": [1]}', '{"3": 1}', '{"3": ["b"]}'])
def test_a_file_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "visitors.json").write_text(text)
    assert opened(tmp_path).of(range(10)) == set()
