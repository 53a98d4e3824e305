"""Two agents of one node's name: it is told, and what was decided about one's GPUs is not done on the other's."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tests.integration.controller.site import ROOT, agent, until
from tests.integration.controller.test_controller import Site, controller, quick, socket
from tests.integration.controller.test_trouble import Gate
from tests.unit.controller import pools

__all__ = ["quick", "socket"]


def speaks(site: Site, started_at: float) -> bool:
    inventory = site.engine.desk.roster["n1"].inventory
    return inventory is not None and inventory.started_at == started_at


async def test_two_agents_that_put_each_other_out_are_both_named(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, AsyncExitStack() as stack:
        for started_at in (1.0, 2.0) * 2:
            await stack.enter_async_context(agent(site.address, socket, "n1", [], started_at=started_at))
            await until(partial(speaks, site, started_at))
        (n1,) = (node for node in (await site.engine.status(ROOT)).nodes if node.node == "n1")
        assert n1.problems[0].startswith("two agents speak for it and put each other out: 127.0.0.1 (started ")


async def test_a_step_planned_on_one_agents_gpus_is_not_sent_to_another_agent(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, await site.link() as link, AsyncExitStack() as stack:
        site.lay_out({"3g.40gb": 2})
        await link.apply()
        await until(lambda: site.engine.desk.decided_for == site.config)
        site.slurm.reading = first = Gate()
        await first.held.wait()
        one = await stack.enter_async_context(site.agent("n1", ()))
        await until(lambda: site.engine.desk.roster["n1"].outbox is not None)
        site.slurm.reading = second = Gate()
        first.open()
        await second.held.wait()  # a pass has seen the first agent's GPU, with nothing cut
        other = pools.gpu("n1-other", ())
        two = await stack.enter_async_context(agent(site.address, socket, "n1", [other]))
        await until(lambda: [gpu.uuid for gpu in site.engine.desk.roster["n1"].gpus or ()] == [other.uuid])
        second.open()
        await until(lambda: two.steps)
        assert {step.gpu for step in (*one.steps, *two.steps)} == {other.uuid}
