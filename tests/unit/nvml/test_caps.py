from pathlib import Path

from slurm_plugin.nvml.caps import CapMinors


def listed(root: Path, text: str) -> CapMinors:
    path = root / "driver/nvidia-caps/mig-minors"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return CapMinors(root)


def test_minors_come_from_the_list_whatever_it_says(tmp_path: Path) -> None:
    caps = listed(tmp_path, "config 1\ngpu2/gi7/access 4000\ngpu2/gi7/ci0/access 4001\n")
    assert caps.of(2, 7, 0) == (4000, 4001)


def test_what_is_not_listed_is_not_known(tmp_path: Path) -> None:
    caps = listed(tmp_path, "gpu2/gi7/access 4000\n")
    assert caps.of(2, 7, 0) == (4000, -1)
    assert caps.of(2, 7, -1) == (4000, -1)
    assert caps.of(0, 7, 0) == (-1, -1)


def test_lines_of_another_form_are_passed_over(tmp_path: Path) -> None:
    caps = listed(tmp_path, "\ngpu0/gi0/access three\ngpu0/gi0/access\ngpu0 gi0 3\ngpu0/gi0/ci0/access 4\n")
    assert caps.of(0, 0, 0) == (-1, 4)


def test_without_a_list_nothing_is_known_until_there_is_one(tmp_path: Path) -> None:
    caps = CapMinors(tmp_path)
    assert caps.of(0, 0, 0) == (-1, -1)
    listed(tmp_path, "gpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n")
    assert caps.of(0, 0, 0) == (3, 4)


def test_a_list_that_is_no_text_is_no_list(tmp_path: Path) -> None:
    caps = listed(tmp_path, "")
    (tmp_path / "driver/nvidia-caps/mig-minors").write_bytes(b"\xff\xfe\x00")
    assert caps.of(0, 0, 0) == (-1, -1)


def test_all_that_gpus_can_have_is_told_and_nothing_of_others(tmp_path: Path) -> None:
    caps = listed(tmp_path, "config 1\nmonitor 2\ngpu1/gi0/access 3\ngpu1/gi0/ci0/access 4\ngpu11/gi0/access 5\n")
    assert caps.of_gpus({1}) == {3, 4}
    assert caps.of_gpus({1, 11}) == {3, 4, 5}
    assert caps.of_gpus(()) == frozenset()
