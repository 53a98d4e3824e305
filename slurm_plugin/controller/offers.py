"""PURE: which class each idle slice is offered as, by what waits.

Pending jobs claim in order of priority, those that had their turn in vain after all others (`loans`). Each claims the
smallest slices that serve it, on nodes where it may run. A job that finds all it needs gets them offered as its class.
Of the jobs that do not, the first that running jobs can make room for has what there is withheld for it, so that it
gathers what it needs; what a busy slice is offered as next is then asked when its job ends (`ask`), since that job's
epilog keeps the node closed while we publish. Slices that nobody claims stay offered as they are: a stream of jobs of
one class needs no word from us.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from slurm_plugin.choice import Slice, in_order
from slurm_plugin.controller.loans import Lent
from slurm_plugin.controller.state import WITHHELD, Serving
from slurm_plugin.controller.wants import Demand, Key, OfferNode, Places, fair
from slurm_plugin.planner.problem import Guarantee

CPU_LOOKS = 64  # nodes looked at for one with CPUs free, before any that has the slice will do
WHERES_MAX = 512  # sets of nodes that jobs may have in a pass; who has a further one claims nothing yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    classes: Mapping[str, str]  # idle slice -> class, WITHHELD for none
    asked: frozenset[str]  # busy slices that a waiting job wants
    waiting: tuple[Demand, ...]  # those that did not find what they need
    lent: Lent
    kept: frozenset[str] = frozenset()  # idle slices that only a guarantee's own jobs may have
    first: Mapping[int, int] = field(default_factory=dict)  # job -> priority with which Slurm gives it what is kept


def reserve(
    idle: Sequence[Slice], unbound: Mapping[str, int], present: Mapping[str, str], serving: Serving
) -> dict[str, str]:
    """The idle slices of a node that its running, not yet bound jobs will take: slice -> class.

    Their prologs may be taking them at this very moment, so the order is the agent's as far as it is known here. The
    agent looks anew after each, and at when jobs end: it may give one another slice that is offered alike.
    """
    taken: dict[str, str] = {}
    for gres_class in sorted(unbound):
        left = (piece for piece in idle if piece.uuid not in taken)
        fitting = in_order(left, gres_class, serving.profiles.get(gres_class, ()), present)
        taken |= {piece.uuid: gres_class for piece in fitting[: unbound[gres_class]]}
    return taken


def assign(
    nodes: Sequence[OfferNode],
    demands: Iterable[Demand],
    present: Mapping[str, str],
    serving: Serving,
    *,
    promises: Sequence[Guarantee] = (),
    part: bool = False,
) -> Offering:
    """Offer every idle slice. Equal input gives equal output, whatever the order of nodes and demands.

    `promises`: what each lacks is claimed by its own jobs first, and kept idle beyond that; its places are names of
    nodes. `part`: there are other
    nodes, so a job that needs several gathers here what there is.
    """
    market = _Market(sorted(nodes, key=lambda n: n.name), present, serving, part)
    waiting: list[Demand] = []
    gathering = 0
    ranked, further = fair(sorted(demands, key=lambda d: d.rank), WHERES_MAX)
    promised = _promised(promises, ranked)
    for promise in promises:
        ranked = market.promise(promise, ranked, promised)
    for demand in ranked:
        if market.claim(demand) == demand.tasks:
            continue
        waiting.append(demand)
        if not gathering and demand.gathers and market.gather(demand):
            gathering = demand.job_id
    lent = Lent(claims=market.claims, gathering=gathering, gathered=market.withheld, opened=market.opened)
    return Offering(
        classes=market.offers(),
        asked=market.asked(waiting),
        waiting=(*waiting, *further),
        lent=lent,
        kept=market.kept,
        first={demand.job_id: market.first[demand.job_id] for demand in waiting if demand.job_id in market.first},
    )


def _is_for(promise: Guarantee, demand: Demand) -> bool:
    return not promise.idle and promise.gres_class == demand.gres_class and promise.account in ("", demand.account)


def _promised(promises: Sequence[Guarantee], ranked: Sequence[Demand]) -> frozenset[int]:
    """The jobs that guarantees lack slices for, as many of each as that is; an array only as a whole.

    None of them is put before another: the slices of one class that are kept for them are taken by the first of them,
    whoever that is, and then by the next.
    """
    found: set[int] = set()
    for promise in (one for one in promises if one.lacking and not one.idle):
        left = promise.lacking
        for demand in (d for d in ranked if _is_for(promise, d) and not d.passed):
            left -= demand.count * demand.nodes * demand.tasks
            if left < 0:
                break
            found.add(demand.job_id)
    return frozenset(found)


@dataclass(slots=True)
class _Market:
    """The idle slices while claims are made on them."""

    nodes: Sequence[OfferNode]
    present: Mapping[str, str]
    serving: Serving
    part: bool
    stock: dict[str, dict[str, dict[int, list[Slice]]]] = field(default_factory=dict)  # profile, offer, node -> slices
    claimed: dict[str, str] = field(default_factory=dict)
    places: Places = field(init=False)
    cpus_left: list[int] = field(default_factory=list)
    have: dict[str, dict[int, int]] = field(default_factory=dict)  # class, node -> idle slices that would serve
    hopeless: set[Key] = field(default_factory=set)
    unattainable: set[Key] = field(default_factory=set)
    taken: dict[str, Counter[int]] = field(default_factory=dict)  # class, node -> busy slices that would serve
    claims: dict[int, bool] = field(default_factory=dict)  # job -> could Slurm start it on what it claimed
    withheld: int = 0
    popped: list[str] = field(default_factory=list)  # every slice that was claimed, kept or withheld, in that order
    opened: dict[int, frozenset[str]] = field(default_factory=dict)  # job -> what it claimed of what is kept for it
    kept: frozenset[str] = frozenset()
    first: dict[int, int] = field(
        default_factory=dict
    )  # jobs that a guarantee is for, and that Slurm puts behind others

    def __post_init__(self) -> None:
        self.places = Places(self.nodes)
        self.cpus_left = [node.cpus_free for node in self.nodes]
        for nth, node in enumerate(self.nodes):
            for piece in reversed(node.idle):  # taken from the end
                offer = self._kept(piece)
                self.stock.setdefault(piece.profile, {}).setdefault(offer, {}).setdefault(nth, []).append(piece)

    def claim(self, demand: Demand, most: int | None = None, within: frozenset[int] | None = None) -> int:
        """Claim for every element of the demand, or for so many. Returns how many found all they need.

        `within`: only on these nodes, and where Slurm could start it at once.
        """
        if demand.key in self.hopeless:
            return 0
        place, ready = self.places.of(demand), within is not None
        if within is not None:
            place = frozenset(nth for nth in place & within if not self.nodes[nth].closing)
        one = self._claim_single if demand.single else self._claim_many
        wanted = demand.tasks if most is None else most
        for nth in range(wanted):
            if not one(demand, place, ready):
                self.hopeless.add(demand.key)  # what is idle only gets less in a pass
                return nth
        return wanted

    def promise(self, promise: Guarantee, ranked: Sequence[Demand], promised: frozenset[int]) -> Sequence[Demand]:
        """Claim what a guarantee lacks for its own jobs, and keep what is left of it. Returns who has to claim yet.

        Slurm gives what is offered as a class to the first job of that class that it can start, whatever its account.
        So what a job behind others would claim stays kept until it is the first, but for those that are `promised`
        slices themselves; and what one would claim that Slurm can't start now, or did not when it had its turn.
        """
        left, rest = promise.lacking, list[Demand]()
        if not left:
            return ranked
        same = (d for d in ranked if d.gres_class == promise.gres_class and d.job_id not in promised)
        others = [d for d in same if not _is_for(promise, d)]
        before = max(((d.priority, -d.job_id) for d in others), default=(-1, 0))
        first = 0  # slices that the first jobs wait for: no more of them are put first than is lacking
        places = promise.places
        within = frozenset(nth for nth, node in enumerate(self.nodes) if places is None or node.name in places)
        for demand in ranked:
            each = demand.count * demand.nodes
            most = min(demand.tasks, left // each) if _is_for(promise, demand) and not demand.passed else 0
            later = (demand.priority, -demand.job_id) < before
            before_it = len(self.popped)
            got = self.claim(demand, most, within) if most and not later else 0
            left -= got * each
            if got and promise.account:
                self.opened[demand.job_id] = self.opened.get(demand.job_id, frozenset()).union(self.popped[before_it:])
            if demand.tasks > got:
                rest.append(replace(demand, tasks=demand.tasks - got) if got else demand)
            if most > got and first + each <= left:
                first += (most - got) * each
                if later:
                    self.first[demand.job_id] = before[0] + 1
        self.hopeless.clear()  # who claims the rest of what it wants may find it all the same
        offer = WITHHELD if promise.account else promise.gres_class
        kept: set[str] = set()
        for profile, was, nth in list(self._supply(promise.gres_class)):
            while nth in within and len(kept) < left and nth in self.stock[profile][was]:
                kept.add(self.stock[profile][was][nth][-1].uuid)
                self._pop(profile, was, nth, offer)
        self.kept |= kept
        return rest

    def gather(self, demand: Demand) -> bool:
        """Withhold what there is for a job that running jobs can make room for. True when it is such a job."""
        if demand.key in self.unattainable:
            return False
        have, taken = self._have(demand.gres_class), self._taken(demand.gres_class)
        able = [
            (max(0, demand.count - have.get(nth, 0)), nth)
            for nth in self.places.of(demand)
            if have.get(nth, 0) + taken[nth] >= demand.count
        ]
        if len(able) < (1 if self.part else demand.nodes):
            self.unattainable.add(demand.key)
            return False
        for _, nth in sorted(able)[: demand.nodes]:
            self.withheld += self._take(nth, demand.gres_class, demand.count, WITHHELD)
        return True

    def offers(self) -> dict[str, str]:
        kept = {
            piece.uuid: offer
            for by_offer in self.stock.values()
            for offer, by_node in by_offer.items()
            for pieces in by_node.values()
            for piece in pieces
        }
        return kept | self.claimed

    def asked(self, waiting: Sequence[Demand]) -> frozenset[str]:
        """Busy slices that would serve a waiting job and are not on their way to it already."""
        alike = {id(demand.key): demand for demand in waiting}  # most of a long queue
        kinds = {(demand.gres_class, demand.single, demand.where): demand for demand in alike.values()}
        nodes: dict[tuple[str, bool], set[int]] = {}  # class, and does it take one slice as it comes -> where
        for demand in kinds.values():
            nodes.setdefault((demand.gres_class, demand.single), set()).update(self.places.of(demand))
        wanted: dict[tuple[str, str], set[int]] = {}  # profile, offer -> where it is asked about
        asked: set[str] = set()
        for nth in set[int]().union(*nodes.values()):
            for piece, offer in self.nodes[nth].busy:
                if (found := wanted.get((piece.profile, offer))) is None:
                    found = wanted[piece.profile, offer] = self._asked_at(nodes, piece.profile, offer)
                if nth in found:
                    asked.add(piece.uuid)
        return frozenset(asked)

    def _asked_at(self, nodes: Mapping[tuple[str, bool], set[int]], profile: str, offer: str) -> set[int]:
        """Where a slice would serve a job of another class than it is offered as, or one that gathers several."""
        others = ((name, at) for (name, single), at in nodes.items() if name != offer or not single)
        return set[int]().union(*(at for name, at in others if self.serving.serves(name, profile)))

    def _kept(self, piece: Slice) -> str:
        """What an unclaimed slice is offered as: what it is now, if it still serves that, else its home class."""
        now = self.present.get(piece.uuid, WITHHELD)
        if now != WITHHELD and self.serving.serves(now, piece.profile):
            return now
        return self.serving.home.get(piece.profile, WITHHELD)

    def _claim_single(self, demand: Demand, place: frozenset[int], ready: bool) -> bool:
        cpus, looks = demand.cpus_a_node, 0
        chosen = None
        for profile, offer, nth in self._supply(demand.gres_class):
            if nth not in place or self.nodes[nth].cpus < cpus:
                continue
            if not ready:
                chosen = chosen or (profile, offer, nth)
            if self.cpus_left[nth] >= cpus:
                chosen = (profile, offer, nth)
                break
            looks += 1
            if looks >= CPU_LOOKS:
                break
        if chosen:
            self._pop(*chosen, demand.gres_class)
            self.cpus_left[chosen[2]] -= cpus
            self._claimed(demand, chosen[2:])
        return chosen is not None

    def _claim_many(self, demand: Demand, place: frozenset[int], ready: bool) -> bool:
        if ready:
            place = frozenset(nth for nth in place if self.cpus_left[nth] >= demand.cpus_a_node)
        chosen = self._choose(demand, place)
        if len(chosen) < demand.nodes:
            return False
        for nth in chosen:
            self._take(nth, demand.gres_class, demand.count, demand.gres_class)
            self.cpus_left[nth] -= demand.cpus_a_node
        self._claimed(demand, chosen)
        return True

    def _claimed(self, demand: Demand, chosen: Sequence[int]) -> None:
        startable = not any(self.nodes[nth].closing for nth in chosen)
        self.claims[demand.job_id] = self.claims.get(demand.job_id, False) or startable

    def _choose(self, demand: Demand, place: frozenset[int]) -> list[int]:
        """As many nodes as the demand needs, those it names first, then those with CPUs free; or fewer."""
        required, cpus = frozenset(demand.wanted_nodes), demand.cpus_a_node
        named: list[int] = []
        good: list[int] = []
        rest: list[int] = []
        have = self._have(demand.gres_class)
        for nth in self._offering_first(demand, have):
            if have[nth] < demand.count or nth not in place or self.nodes[nth].cpus < cpus:
                continue
            if self.nodes[nth].name in required:
                named.append(nth)
            else:
                (good if self.cpus_left[nth] >= cpus else rest).append(nth)
            if not required and len(good) == demand.nodes:
                break
        if len(named) < min(len(required), demand.nodes):
            return []
        return [*named, *good, *rest][: demand.nodes]

    def _offering_first(self, demand: Demand, have: Mapping[int, int]) -> Iterator[int]:
        """Nodes that offer enough as its class already come first: what was claimed in one pass is in the next."""
        offered: dict[int, int] = {}
        for profile in self.serving.profiles.get(demand.gres_class, ()):
            for nth, pieces in self.stock.get(profile, {}).get(demand.gres_class, {}).items():
                offered[nth] = offered.get(nth, 0) + len(pieces)
        enough = {nth for nth, count in offered.items() if count >= demand.count}
        yield from (nth for nth in have if nth in enough) if enough else ()
        yield from (nth for nth in have if nth not in enough)

    def _supply(self, gres_class: str) -> Iterator[tuple[str, str, int]]:
        """(profile, offer, node) of what would serve: smallest first, what is offered so already before the rest."""
        for profile in self.serving.profiles.get(gres_class, ()):
            for offer in self._ranked_offers(profile, gres_class):
                for nth in self.stock[profile][offer]:
                    yield profile, offer, nth

    def _ranked_offers(self, profile: str, gres_class: str) -> list[str]:
        return sorted(self.stock.get(profile, ()), key=lambda offer: (offer != gres_class, offer))

    def _taken(self, gres_class: str) -> Counter[int]:
        """Busy slices that would serve, by node."""
        if gres_class not in self.taken:
            profiles = frozenset(self.serving.profiles.get(gres_class, ()))
            busy = ((nth, piece) for nth, node in enumerate(self.nodes) for piece, _ in node.busy)
            self.taken[gres_class] = Counter(nth for nth, piece in busy if piece.profile in profiles)
        return self.taken[gres_class]

    def _have(self, gres_class: str) -> dict[int, int]:
        """Idle slices that would serve, by node; kept right by every claim once it was asked for."""
        if gres_class not in self.have:
            counts: dict[int, int] = {}
            for profile in self.serving.profiles.get(gres_class, ()):
                some = [item for by_node in self.stock.get(profile, {}).values() for item in by_node.items()]
                for nth, pieces in sorted(some, key=itemgetter(0)):  # whatever they are offered as
                    counts[nth] = counts.get(nth, 0) + len(pieces)
            self.have[gres_class] = counts
        return self.have[gres_class]

    def _take(self, nth: int, gres_class: str, count: int, offer_as: str) -> int:
        """Take up to `count` slices of one node, smallest first. Returns how many."""
        left = count
        for profile in self.serving.profiles.get(gres_class, ()):
            for offer in self._ranked_offers(profile, gres_class):
                while left and nth in self.stock[profile][offer]:
                    self._pop(profile, offer, nth, offer_as)
                    left -= 1
        return count - left

    def _pop(self, profile: str, offer: str, nth: int, offer_as: str) -> None:
        by_node = self.stock[profile][offer]
        uuid = by_node[nth].pop().uuid
        self.claimed[uuid] = offer_as
        self.popped.append(uuid)
        if not by_node[nth]:
            del by_node[nth]
        for gres_class, counts in self.have.items():
            if self.serving.serves(gres_class, profile):
                counts[nth] -= 1
                if not counts[nth]:
                    del counts[nth]
