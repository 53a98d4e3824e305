"""What admins get wrong: a pool.yaml about what is there, and a Gres set by hand."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import books
from slurm_plugin.errors import ConfigError
from slurm_plugin.ports import GresItem
from tests.integration.controller.site import DictSlurm, until
from tests.integration.controller.test_controller import controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


async def test_file_that_is_wrong_about_slurm_or_the_gpus_is_planned_with_its_mistakes_and_not_applied(
    socket: Path, tmp_path: Path
) -> None:
    async with (
        controller(socket, tmp_path) as site,
        site.agent("n1", pools.SEVEN),
        site.agent("n2", pools.SEVEN),
        await site.link() as link,
    ):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        before = site.config
        text = "version: 1\npool: hpc\npartitions: [gpuu]\nnodes: [{hosts: 'n[1-2]', count: 9}]\n"
        planned = (await link.plan(text + "classes: {big: {profiles: [3g.20gb]}}\n")).problems
        assert sum("did you mean 'gpu'" in line for line in planned) == 1
        assert sum("count says 9" in line for line in planned) == 1
        assert sum("classes.big" in line for line in planned) == 1
        site.config = replace(before, partitions=("gpuu",))
        with pytest.raises(ConfigError, match="no partition 'gpuu'"):
            await link.apply()
        site.config = before
        site.slurm.parts["vgpu-wait"] = {"State": "UP"}
        with pytest.raises(ConfigError, match="not DOWN"):
            await link.apply()
        assert site.engine.desk.config == before


async def test_gres_that_somebody_left_out_comes_back_when_it_is_ours_and_is_told_when_not(
    socket: Path, tmp_path: Path
) -> None:
    gpu = GresItem(name="gpu", type="h100", count=4)
    slurm = DictSlurm({"n1": pools.slurm_node("n1"), "n2": pools.slurm_node("n2")})
    slurm.node_list["n1"] = replace(slurm.node_list["n1"], gres=(gpu, *slurm.node_list["n1"].gres))
    async with (
        controller(socket, tmp_path, slurm=slurm) as site,
        site.agent("n1", pools.SEVEN),
        site.agent("n2"),
    ):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7 and "pad" in site.gres("n2"))
        slurm.node_list["n1"] = replace(slurm.node_list["n1"], gres=(pools.vgpu("pad", 0), pools.vgpu("1g.10gb", 0)))
        await until(lambda: GresItem(name="vgpu_mem", count=32) in slurm.node_list["n1"].gres)
        assert site.gres("n1") == {"1g.10gb": 7, "pad": 993}
        async with await site.link() as link:
            await until(lambda: site.engine.desk.decision and site.engine.desk.decision.problems.get("n1"))
            (n1, _) = (await link.status()).nodes
        assert [line for line in n1.problems if "gpu" in line] == [
            "Slurm has no gpu on it (any more): scontrol reconfigure"
        ]


async def hang() -> None:
    """No error and no answer."""
    await asyncio.Event().wait()


async def test_slurm_that_does_not_answer_is_told_with_how_long(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        assert not any("does not answer" in line for line in (await link.status()).problems)
        monkeypatch.setattr(books, "SILENT_S", 0.2)
        site.slurm.reading = hang
        await until(lambda: site.engine.desk.books.silent_s)
        (line,) = [line for line in (await link.status()).problems if "Slurm" in line]
        assert line.startswith("Slurm does not answer since ")
