"""What an origin knows of the sites it may use."""

from federation.engine.sites import Sites
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
