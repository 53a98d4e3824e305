"""No job is lost, run twice or stuck, whatever crashes, is cut, doubled, late, out of order, or set to another time."""

import gc
import os

import pytest

from tests.simulation.federation.story import QUIET_S, Scale, Story

SMALL = Scale(sites=10, jobs=250, trouble_s=900.0, crashes=25, cuts=15, slots=3, most_in_pool=5)
LARGE = Scale(sites=50, jobs=10_000, trouble_s=1200.0, crashes=400, cuts=200, slots=16, most_in_pool=24)
SEED = int(os.environ.get("FED_SEED", "1"))  # the first of those that are told


def told(seed: int, scale: Scale) -> Story:
    print(f"seed {seed}")  # pytest shows it when the test fails
    gc.disable()  # a story makes no rubbish that matters, and has much to look through
    try:
        story = Story(seed=seed, scale=scale)
        story.tell()
        story.world.run(story.over, scale.trouble_s + QUIET_S)
        story.check()
    finally:
        gc.enable()
    return story


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_ten_sites(seed: int) -> None:
    story = told(seed, SMALL)
    assert len(story.truth.starts) > SMALL.jobs / 2
    assert story.happened["cut"] == SMALL.cuts
    assert sum(node.life for node in story.nodes.values()) > 2 * SMALL.sites


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + 200))
def test_fifty_sites_and_ten_thousand_jobs(seed: int) -> None:
    told(seed, LARGE)
