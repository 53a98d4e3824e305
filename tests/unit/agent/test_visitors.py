import subprocess
from pathlib import Path

import pytest

from slurm_plugin.agent import durable
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.model import RunKey
from tests.unit.nvml.hiders import USER

ONE, TWO, THREE = (RunKey(job_id=job, started_at=100, uid=1000 + job) for job in (1, 2, 3))


def opened(folder: Path) -> Visitors:
    visitors = Visitors(folder / "visitors.json")
    visitors.open()
    return visitors


def test_who_had_a_device_is_known_to_the_next_agent_until_he_has_left(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.note([3, 4], ONE)
    first.note([4, 5], TWO)
    second = opened(tmp_path)
    assert [second.of([minor]) for minor in (3, 4, 5, 6)] == [{ONE}, {ONE, TWO}, {TWO}, set()]
    second.left([4, 5])
    second.note([6], THREE)
    assert opened(tmp_path).of(range(10)) == {ONE, THREE}


def test_devices_without_a_number_are_nobodys(tmp_path: Path) -> None:
    visitors = opened(tmp_path)
    visitors.note([-1], ONE)
    assert visitors.of([-1]) == set()


def test_who_could_not_be_written_down_is_not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visitors = opened(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(OSError, match="no space"):
            visitors.note([3], ONE)
        assert visitors.of([3]) == set()
    visitors.note([3], ONE)
    assert opened(tmp_path).of([3]) == {ONE}


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    visitors = opened(tmp_path)
    visitors.note([3, 4], ONE)
    (tmp_path / "visitors.json").unlink()
    visitors.note([4], ONE)
    assert not (tmp_path / "visitors.json").exists()


def test_each_run_of_a_user_is_known(tmp_path: Path) -> None:
    again = RunKey(job_id=1, started_at=200, uid=1001)
    visitors = opened(tmp_path)
    visitors.note([3], ONE)
    visitors.note([3], again)
    assert opened(tmp_path).of([3]) == {ONE, again}


@pytest.mark.parametrize("text", ["", "[]", '{"a": [1]}', '{"3": 1}', '{"3": ["b"]}', '{"3": [[1, 2]]}'])
def test_of_a_file_that_makes_no_sense_anybody_may_have_had_every_slice(tmp_path: Path, text: str) -> None:
    (tmp_path / "visitors.json").write_text(text)
    with subprocess.Popen(["sleep", "100"], user=USER) as process:
        visitors = opened(tmp_path)
        visitors.left([4])
        visitors.note([5], ONE)
        again = opened(tmp_path)
        process.kill()
    for minor, expected in ((3, True), (4, False), (5, True)):
        assert (USER in {run.uid for run in again.of([minor])}) is expected
    assert ONE in again.of([5])


def test_a_file_that_can_not_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "visitors.json").mkdir()
    with pytest.raises(OSError, match=r"visitors\.json"):
        opened(tmp_path)
