"""When a job that waits for slices would start here: the pool's own controller is asked, as overflow asks it."""

import time

import pytest

from federation.overflow.expected import Controller
from federation.overflow.facts import Waiting
from tests.e2e.live import Live
from tests.e2e.test_explain import HALVES, explained

pytestmark = pytest.mark.slurm

LIMIT_MIN = 50


async def test_a_job_is_expected_when_those_in_its_way_end(live: Live) -> None:
    halves = live.submit("alice", "--gres=vgpu:3g.40gb", f"--time={LIMIT_MIN}", f"--array=1-{HALVES}")
    live.until(lambda: live.state(halves).split() == ["RUNNING"] * HALVES, "every half has a job")
    jobs = [int(live.submit("bob", "--gres=vgpu:3g.40gb")) for _ in range(2)]
    live.until(lambda: all(explained(live, str(job))["why"] == "busy" for job in jobs), "they wait for them")
    waiting = [
        Waiting(job_id=job, root=job, uid=1, priority=1, partitions=("gpu",), since=0) for job in (*jobs, 999_999)
    ]
    now = time.time()
    starts = await Controller(live.lab.pool_config).starts(waiting, now)
    assert starts.keys() == {jobs[0]}  # of the second nobody can tell: the first one comes before it
    assert now < starts[jobs[0]] <= now + LIMIT_MIN * 60 + 1
    assert await Controller(live.lab.pool_config.with_name("none.yaml")).starts(waiting, now) == {}
