"""What an origin knows of the sites it may use."""

from collections import Counter

import pytest

from federation.engine.sites import FIRST_BYTE_S, LEAST_MOVED, Sites
from federation.model.messages import Room, Rooms
from federation.ports import Now

NOW = Now(wall=1000.0, mono=1.0)


def rooms(*names: str) -> Rooms:
    return Rooms(pools=tuple(Room(pool=name, free_jobs=1, free_cpus=1) for name in names))


def test_of_a_pool_that_its_site_names_no_more_no_failure_is_remembered() -> None:
    """Else a peer that names its pools anew again and again would fill our memory."""
    sites = Sites("edge", ("hpc",), NOW)
    sites.offered("hpc", rooms("a", "b"), NOW)
    kept, gone = sites.breaker("hpc/a"), sites.breaker("hpc/b")
    sites.offered("hpc", rooms("a", "c"), NOW)
    sites.offered("hpc", rooms("a", "b"), NOW)
    assert sites.breaker("hpc/a") is kept
    assert sites.breaker("hpc/b") is not gone


def test_how_fast_a_link_is_is_learned_of_each_site_from_what_travelled() -> None:
    sites = Sites("edge", ("hpc", "cloud"), NOW)
    for site in ("hpc", "cloud"):
        sites.offered(site, rooms("a"), NOW)

    def speeds() -> dict[str, float]:
        return {pool.site: pool.bytes_per_s for pool in sites.pools(Counter(), NOW)}

    first = 1 / FIRST_BYTE_S
    sites.moved("hpc", LEAST_MOVED - 1, 1000.0)  # tells of other things
    sites.moved("gone", 1 << 30, 1.0)
    assert speeds() == pytest.approx({"hpc": first, "cloud": first})
    for _ in range(20):
        sites.moved("hpc", 1 << 30, 1.0)
        sites.moved("cloud", 1 << 20, 10.0)
    assert speeds() == pytest.approx({"hpc": 1 << 30, "cloud": (1 << 20) / 10}, rel=0.1)
    sites.moved("cloud", 1 << 30, 0.0)
    assert speeds()["cloud"] < 1e6  # one that was lucky is not all
