import os
from pathlib import Path

import pytest

from slurm_plugin import trust
from slurm_plugin.errors import ConfigError

SOMEBODY = 12_345


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc/pool.yaml"
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    return path


def test_what_only_root_can_change_is_trusted(file: Path) -> None:
    trust.check(file)
    trust.check(file.parent)
    trust.check(file.with_name("not-there-yet"))


@pytest.mark.parametrize(
    ("mode", "says"), [(0o666, "can be written by everybody"), (0o664, "can be written by group 12345")]
)
def test_a_file_that_others_can_write_is_not(file: Path, mode: int, says: str) -> None:
    os.chown(file, 0, SOMEBODY)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=says) as refused:
        trust.check(file)
    assert refused.value.hint == f"chmod go-w {file}"


def test_roots_own_group_is_root(file: Path) -> None:
    file.chmod(0o664)
    trust.check(file)


def test_a_folder_on_the_way_that_others_can_write_is_not(file: Path) -> None:
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{file.parent} can be written by everybody"):
        trust.check(file)


def test_somebodys_folder_is_his_unless_he_is_named(file: Path) -> None:
    os.chown(file.parent, SOMEBODY, 0)
    with pytest.raises(ConfigError, match="belongs to uid 12345") as refused:
        trust.check(file)
    assert refused.value.hint == f"chown root {file.parent}"
    trust.check(file, also=SOMEBODY)


def test_in_a_sticky_folder_what_is_ours_stays_ours(file: Path) -> None:
    file.parent.chmod(0o1777)
    trust.check(file)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        trust.check(file.parent)  # as a folder of ours it is not


def test_behind_a_link_counts_where_it_leads(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    trust.check(link)
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{file.parent} can be written"):
        trust.check(link)


def test_a_link_of_somebodys_is_his(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    with pytest.raises(ConfigError, match="link belongs to uid 12345"):
        trust.check(link)
