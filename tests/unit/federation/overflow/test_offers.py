"""What pools say to a waiting job: as where jobs of fed are placed, but for budgets."""

from federation.model.messages import Room
from federation.overflow.offers import Behind, Market, Wanted
from federation.policy.choose import Pool, Rules

ROOM = Room(pool="cpu", free_jobs=5, free_cpus=64, price_per_hour=0.5, batch=True)


def behind(site: str = "cloud", room: Room | None = ROOM, *, linked: bool = True, away_s: float = 0.0) -> Behind:
    known = Pool(site=site, room=room, linked=linked) if room else None
    prefix = f"v-{site}"
    return Behind(
        pool=f"{site}/cpu",
        names=frozenset({prefix, site, "cpu"}),
        nodes=(f"{prefix}-1",),
        known=known,
        away_s=away_s,
    )


def market(*pools: Behind, rules: Rules | None = None, closed: str = "") -> Market:
    return Market(behind=pools, rules=rules or Rules(), now=0.0, closed=closed)


def test_a_pool_that_takes_it_says_its_price_and_no_budget_is_looked_at() -> None:
    (offer,) = market(behind(), rules=Rules(budget_per_day={"*": 0.0})).offers(Wanted(cpus=4, limit_s=7200))
    assert (offer.pool, offer.money, offer.no, offer.away_s) == ("cloud/cpu", 4.0, "", 0.0)


def test_why_pools_do_not_take_it() -> None:
    def no(*pools: Behind, closed: str = "", wanted: Wanted | None = None) -> str:
        return market(*pools, closed=closed).offers(wanted or Wanted())[0].no

    assert no(behind(linked=False)) == "no link now"
    assert no(behind(room=None)) == "its site does not tell of it"
    assert no(behind(), closed="partition cloud is down") == "partition cloud is down"
    assert no(behind(linked=False), closed="partition cloud is down") == "no link now"
    assert no(behind(room=Room(pool="cpu", free_jobs=5, free_cpus=1))) == "its daemon is too old for jobs of Slurm's"
    assert no(behind(room=Room(pool="cpu", free_jobs=0, free_cpus=0, batch=True))).startswith("full")
    assert no(behind(), wanted=Wanted(gres="gpu:1")).startswith("what it has of gpu:1 is not known")
    assert no(behind(), wanted=Wanted(gres="vgpu:20gb")) == "it has no slices"


def test_how_long_a_site_is_away_is_told() -> None:
    assert market(behind(linked=False, away_s=70.0)).offers(Wanted())[0].away_s == 70.0
    assert market(behind(room=None, away_s=70.0)).offers(Wanted())[0].away_s == 70.0


def test_a_job_that_names_a_pool_is_offered_no_other_and_kept_from_their_nodes() -> None:
    found = market(behind("a"), behind("b"))
    for name in ("b", "v-b"):
        assert [offer.pool for offer in found.offers(Wanted(pin=name))] == ["b/cpu"]
        assert found.not_for(Wanted(pin=name)) == ("v-a-1",)
    assert [offer.pool for offer in found.offers(Wanted(pin="cpu"))] == ["a/cpu", "b/cpu"]
    assert found.not_for(Wanted()) == ()
    assert found.offers(Wanted(pin="nowhere")) == ()


def test_accounts_that_may_not_go_somewhere_are_kept_from_its_nodes() -> None:
    found = market(behind("a"), behind("b"), rules=Rules(deny={"bio": ("a",)}, allow={"lab": ("b/cpu",)}))
    assert found.not_for(Wanted(account="bio")) == ("v-a-1",)
    assert found.not_for(Wanted(account="lab")) == ("v-a-1",)
    assert found.not_for(Wanted()) == ()
    assert [offer.pool for offer in found.offers(Wanted(account="bio"))] == ["b/cpu"]
