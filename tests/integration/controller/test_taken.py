"""A Gres that somebody took off a node by hand comes back; one that slurm.conf no longer gives does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.ports import GresItem
from tests.integration.controller.site import ROOT, until
from tests.integration.controller.test_controller import NODES, Site, controller, quick, socket
from tests.integration.controller.test_trouble import two_passes
from tests.unit.controller import pools

__all__ = ["quick", "socket"]

GPU = GresItem(name="gpu", count=4)
BASE = (GresItem(name="vgpu", count=pools.TOTAL), GresItem(name="vgpu_mem", count=32))


def set_by_hand(site: Site, node: str, *gres: GresItem) -> None:
    site.slurm.node_list[node] = replace(site.slurm.node_list[node], gres=gres)


async def published(site: Site) -> None:
    await until(lambda: site.gres("n1").get("1g.10gb") == 7 and "pad" in site.gres("n2"))


async def problems(site: Site, node: str) -> list[str]:
    return [text for one in (await site.engine.status(ROOT)).nodes if one.node == node for text in one.problems]


@pytest.mark.parametrize("left", [(), (GPU,)], ids=["nothing", "gpu"])
async def test_what_somebody_took_off_a_node_live_is_published_again_with_its_total(
    socket: Path, tmp_path: Path, left: tuple[GresItem, ...]
) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), site.agent("n2"):
        await published(site)
        set_by_hand(site, "n1", *left)
        await published(site)
        assert not site.slurm.wrong
        assert set(left) <= set(site.slurm.node_list["n1"].gres)


async def test_what_slurm_conf_no_longer_gives_a_node_is_not_published_there(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), site.agent("n2"):
        await published(site)
        set_by_hand(site, "n1")
        set_by_hand(site, "n2", *BASE)  # slurm.conf was read anew
        await until(lambda: "pad" in site.gres("n2"))
        await two_passes(site)
        assert site.slurm.node_list["n1"].gres == ()
        assert [p for p in await problems(site, "n1") if "slurm.conf lacks it" in p]
        site.slurm.restart()
        await published(site)


async def test_a_gres_that_is_gone_is_told_until_slurm_conf_was_read_anew(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), site.agent("n2"):
        await published(site)  # else the first pass may write over it
        for name in NODES:
            set_by_hand(site, name, GPU, *BASE)
        await until(lambda: GPU in site.slurm.node_list["n1"].gres and site.gres("n1").get("1g.10gb") == 7)
        set_by_hand(site, "n1", *(item for item in site.slurm.node_list["n1"].gres if item != GPU))
        await two_passes(site)
        await until(lambda: "gpu" in site.engine.desk.books.gone("n1"))
        site.slurm.restart()  # slurm.conf has no gpu by now
        await published(site)
        await two_passes(site)
        assert not [p for p in await problems(site, "n1") if "no gpu on it" in p]
