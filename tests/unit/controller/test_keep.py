"""What the controller keeps on disk is whole or not there."""

import os
import stat
from pathlib import Path

import pytest

from slurm_plugin.controller.keep import Keep, claimed
from slurm_plugin.errors import ConfigError
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


async def test_inventory_comes_back_without_its_grants(tmp_path: Path) -> None:
    one = Keep(tmp_path / "state", tmp_path / "catalogue")
    await one.inventory(
        "n1", pb.Inventory(node="n1", gpus=[pb.Gpu(uuid="GPU-a")], grants=[pb.Grant(job_id=1)], garbled=[2])
    )
    assert one.load(("n1", "n2")) == {"n1": pb.Inventory(node="n1", gpus=[pb.Gpu(uuid="GPU-a")])}
    assert stat.S_IMODE((tmp_path / "state/nodes/n1.pb").stat().st_mode) == 0o600


async def test_unreadable_inventory_is_as_if_there_were_none(tmp_path: Path) -> None:
    one = Keep(tmp_path, tmp_path / "catalogue")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/n1.pb").write_bytes(b"\xff\xff\xff")
    assert one.load(("n1",)) == {}
    assert one.present_catalogue() == ""


def test_a_state_folder_has_one_controller_and_a_second_is_told_which(tmp_path: Path) -> None:
    with claimed(tmp_path / "state"):
        with (
            pytest.raises(ConfigError, match=f"another controller .pid {os.getpid()} on ") as refused,
            claimed(tmp_path / "state"),
        ):
            pass
        assert "stop that one" in refused.value.hint
    with claimed(tmp_path / "state"):
        pass  # the first one is over


def test_a_state_folder_that_can_not_be_written_keeps_no_controller_from_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with claimed(tmp_path / "file" / "state"):
        pass
