"""Two controllers of one pool: the one that no agent calls stops writing, and both say that there is another."""

import time
from pathlib import Path

import pytest

from slurm_plugin.controller import books, rivals, roster
from tests.integration.controller.site import ROOT, until
from tests.integration.controller.test_controller import Site, controller, quick, socket
from tests.unit.controller import pools

__all__ = ["quick", "socket"]


def told(site: Site) -> bool:
    return bool(site.engine.desk.books.rivals.problem(time.monotonic()))


async def test_a_controller_without_agents_leaves_the_counts_to_the_one_that_has_them(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "GRACE_S", 0.3)
    async with controller(socket, tmp_path / "one") as site, site.agent("n1", pools.SEVEN):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        async with controller(socket, tmp_path / "two", slurm=site.slurm) as other:
            await until(lambda: told(other) and told(site))
            await until(lambda: site.gres("n1").get("1g.10gb") == 7)
            writes, passes = len(site.slurm.written), other.engine.passes
            await until(lambda: other.engine.passes >= passes + 5)
            assert len(site.slurm.written) == writes, "nobody fights any more"
            for one in (site, other):
                assert [p for p in (await one.engine.status(ROOT)).problems if "on n1 again and again" in p]


async def test_a_controller_whose_agents_are_gone_takes_their_slices_away(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "GRACE_S", 0.3)
    async with controller(socket, tmp_path) as site:
        async with site.agent("n1", pools.SEVEN):
            await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        await until(lambda: site.gres("n1") == {"pad": pools.TOTAL})
        site.slurm.restart()  # nobody's change
        await until(lambda: site.gres("n1") == {"pad": pools.TOTAL})
        assert not told(site)


async def test_a_node_of_a_dead_rival_is_tried_again(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in ((roster, "GRACE_S", 0.3), (rivals, "LEAVE_S", 0.5), (books, "POLL_S", 0.05)):
        monkeypatch.setattr(module, name, value)
    async with controller(socket, tmp_path / "two") as other:
        async with controller(socket, tmp_path / "one", slurm=other.slurm) as site, site.agent("n1", pools.SEVEN):
            await until(lambda: told(other))
        await until(lambda: other.gres("n1") == {"pad": pools.TOTAL})
