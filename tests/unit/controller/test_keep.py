"""What the controller keeps on disk is whole or not there."""

import stat
from pathlib import Path

from slurm_plugin.controller.keep import Keep
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


async def test_inventory_comes_back_without_its_grants(tmp_path: Path) -> None:
    one = Keep(tmp_path / "state", tmp_path / "catalogue")
    await one.inventory("n1", pb.Inventory(node="n1", gpus=[pb.Gpu(uuid="GPU-a")], grants=[pb.Grant(job_id=1)]))
    assert one.load(("n1", "n2")) == {"n1": pb.Inventory(node="n1", gpus=[pb.Gpu(uuid="GPU-a")])}
    assert stat.S_IMODE((tmp_path / "state/nodes/n1.pb").stat().st_mode) == 0o600


async def test_unreadable_inventory_is_as_if_there_were_none(tmp_path: Path) -> None:
    one = Keep(tmp_path, tmp_path / "catalogue")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/n1.pb").write_bytes(b"\xff\xff\xff")
    assert one.load(("n1",)) == {}
    assert one.present_catalogue() == ""
