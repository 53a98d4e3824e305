import os
from pathlib import Path

import pytest

from slurm_plugin.agent.devices import Devices
from tests.unit.agent.world import gpu, instance

SLICE = instance("A", "1g.20gb", 2, gi=5, caps=(48, 49))
HERE = gpu("A", instances=(SLICE,), index=3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    access = tmp_path / "proc/driver/nvidia/capabilities/gpu3/mig/gi5"
    (access / "ci0").mkdir(parents=True)
    for path, minor in ((access / "access", 48), (access / "ci0/access", 49)):
        path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for minor in (48, 49):
        (tmp_path / f"dev/nvidia-caps/nvidia-cap{minor}").touch(mode=0o444)
    return tmp_path


def devices(root: Path) -> Devices:
    return Devices(proc_root=root / "proc", dev_root=root / "dev")


def owners(root: Path) -> list[tuple[int, int]]:
    found = ((root / f"dev/nvidia-caps/nvidia-cap{minor}").stat() for minor in (48, 49))
    return [(one.st_uid, one.st_mode & 0o777) for one in found]


def test_a_slice_is_its_users_and_then_roots(root: Path) -> None:
    assert devices(root).give(HERE, SLICE, 1234)
    assert owners(root) == [(1234, 0o400), (1234, 0o400)]
    assert devices(root).give(HERE, SLICE, 0)
    assert owners(root) == [(0, 0o400), (0, 0o400)]


def test_the_driver_is_told_once_to_leave_the_mode_alone(root: Path) -> None:
    for _ in range(3):
        devices(root).give(HERE, SLICE, 1234)
    for path in root.glob("proc/driver/nvidia/capabilities/gpu3/mig/gi5/**/access"):
        assert path.read_text().count("DeviceFileModify: 0\n") == 1
        assert path.read_text().endswith("DeviceFileModify: 0\n")


def test_a_link_in_the_nodes_place_is_not_followed(root: Path) -> None:
    victim = root / "victim"
    victim.touch(mode=0o600)
    node = root / "dev/nvidia-caps/nvidia-cap48"
    node.unlink()
    node.symlink_to(victim)
    devices(root).give(HERE, SLICE, 1234)
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o600)


def test_a_missing_node_without_a_major_number_is_a_failure_that_is_told(root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    (root / "dev/nvidia-caps/nvidia-cap49").unlink()
    assert not devices(root).give(HERE, SLICE, 1234)


def test_a_missing_node_is_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a device node may be forbidden where tests run, so the call is looked at."""
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n511 nvidia-caps\n")
    (root / "dev/nvidia-caps/nvidia-cap49").unlink()
    made = []

    def mknod(path: Path, mode: int, device: int) -> None:
        made.append((path.name, oct(mode), os.major(device), os.minor(device)))
        path.touch(mode=0o400)

    monkeypatch.setattr(os, "mknod", mknod)
    assert devices(root).give(HERE, SLICE, 1234)
    assert made == [("nvidia-cap49", "0o20400", 511, 49)]
    assert owners(root) == [(1234, 0o400), (1234, 0o400)]


def test_what_a_user_did_to_the_mode_of_his_node_is_undone(root: Path) -> None:
    devices(root).give(HERE, SLICE, 1234)
    for minor in (48, 49):
        (root / f"dev/nvidia-caps/nvidia-cap{minor}").chmod(0o666)
    assert devices(root).give(HERE, SLICE, 0)
    assert owners(root) == [(0, 0o400), (0, 0o400)]
