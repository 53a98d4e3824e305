"""While the pool is only observed, a node's agent binds what is there and changes nothing else."""

from dataclasses import replace

from slurm_plugin.model import MigMode
from tests.integration.agent.bench import Bench
from tests.unit.agent.world import gpu, run, uuid


async def test_nothing_is_cut_switched_or_sealed_until_the_pool_is_managed(bench: Bench) -> None:
    bench.gpus.now = {one.uuid: one for one in (gpu("A", ("1g.20gb", 0)), gpu("B", index=1, mig=MigMode.DISABLED))}
    managed = bench.terms
    bench.terms = replace(managed, gpus=frozenset("AB"), observe=True)
    bench.rules.wait_s = 0.2
    async with bench.running():
        before = dict(bench.gpus.now)
        bench.slurm.runs[1] = run(1)
        await bench.runs.prolog(1)
        assert bench.held() == {1: (uuid("A", "1g.20gb", 0),)}
        assert bench.devices.now == {uuid("A", "1g.20gb", 0): 1000}
        bench.slurm.runs[2] = run(2)
        await bench.runs.prolog(2)  # there is room for another, and it is not cut
        await bench.slices.tend()
        assert bench.slurm.requeued == [2]
        assert bench.gpus.now == before
        await bench.runs.agree(replace(bench.terms, observe=False))
        await bench.until(lambda: bench.gpus.now["B"].mig is MigMode.ENABLED)
