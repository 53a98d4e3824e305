"""A whole site's engine: origin and target side over one journal, each event one transaction."""

from dataclasses import dataclass

from federation.engine.effects import Effect
from federation.engine.follower import Follower
from federation.engine.origin import MOST_WOKEN, OriginRules, OriginSide
from federation.engine.sites import Sites
from federation.engine.target import TargetSide
from federation.model.messages import Cancel, Follow, Message, Release, Signal, Submit
from federation.policy.admit import House
from federation.ports import Now
from federation.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRules:
    """What a site's file says."""

    name: str
    peers: tuple[str, ...]  # sites that it may send jobs to, or that may send it jobs
    origin: OriginRules
    house: House


class SiteEngine:
    """In memory only what is heard anew. Made anew after every restart."""

    def __init__(self, rules: SiteRules, now: Now) -> None:
        self.name = rules.name
        self.sites = Sites(rules.name, rules.peers, now)
        self.origin = OriginSide(self.sites, rules.origin)
        self.follower = Follower(self.sites)
        self.target = TargetSide(rules.house, now)

    def reload(self, store: Store, rules: SiteRules, now: Now) -> list[Effect]:
        """What the site's file says now: jobs that wait are looked at by it."""
        self.sites.follow(rules.peers, now)
        self.origin.rules, self.target.house = rules.origin, rules.house
        store.wake_queued(now.wall, MOST_WOKEN)
        return []

    def start(self, store: Store, now: Now) -> list[Effect]:
        return [*self.target.start(store, now), *self.origin.link(store, self.name, True, now)]

    def message(self, store: Store, sender: str, message: Message, now: Now) -> list[Effect]:
        if isinstance(message, Submit | Cancel | Signal | Release | Follow):
            return self.target.message(store, sender, message, now)
        return self.follower.message(store, sender, message, now)

    @property
    def more_due(self) -> bool:
        """The last pass left something for the next."""
        return self.origin.more_due or self.target.more_due

    def due(self, store: Store, now: Now) -> list[Effect]:
        """One pass of everything that time alone brings."""
        return [*self.origin.due(store, now), *self.target.due(store, now)]

    def forget(self, store: Store, now: Now) -> int:
        """One portion of what retention drops. Tells how much; 0: nothing is left to drop."""
        return self.origin.forget(store, now) + self.target.forget(store, now)
