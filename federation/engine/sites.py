"""What an origin knows of the sites it may use, in memory: it is heard anew after every restart."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from federation.model.messages import Room, Rooms
from federation.model.states import Origin
from federation.policy.breaker import Breaker
from federation.policy.choose import Pool
from federation.ports import Now

SILENT_S = 20.0  # a site that was not heard for longer, though there seems to be a link, gets no new job
WARY_S = 60.0  # a pool that had no room when asked, whatever its site told, gets only so many jobs for that long
WARY_JOBS = 16  # each time that its site tells of room
JOURNAL_S = 60.0  # between two new journals of one site: for each all jobs there are asked about again
FIRST_BYTE_S = 1e-7  # what a byte to a site is taken to need before one has travelled
NEWEST = 0.3  # what the newest transfer counts of that
MOVES_S = 1e-3  # the least that a transfer takes
LEAST_MOVED = 1 << 20  # bytes: less tells of other things than the link
MAX_POOLS = 1000  # of all sites together; more are not considered


@dataclass(slots=True)
class Site:
    name: str
    heard: float  # seconds that only pass, when anything was last heard; at first: when we started
    rooms: dict[str, Room] = field(default_factory=dict)
    full_at: dict[str, float] = field(default_factory=dict)  # pools that had no room when asked, and when that was
    linked: bool = False
    byte_s: float = FIRST_BYTE_S  # what a byte of a job's input takes to get there: of the last ones that did
    follow_at: float = 0.0  # when it is to be followed next
    journal_at: float = -math.inf  # when it last told of a new journal, and that was looked into

    def takes_new_journal(self, now: Now) -> bool:
        """Whether one that it tells of now is looked into. No: another was, a moment ago."""
        if now.mono - self.journal_at < JOURNAL_S:
            return False
        self.journal_at = now.mono
        return True

    def has(self, pool: str, more: int, cpus: int = 0) -> None:
        """Since its site last told, room for so many more jobs came, or fewer, and so many more CPUs are idle."""
        if (room := self.rooms.get(pool)) is not None:
            free_jobs = max(0, room.free_jobs + more)
            self.rooms[pool] = replace(room, free_jobs=free_jobs, free_cpus=room.free_cpus + cpus)

    def free_jobs(self) -> int:
        return sum(room.free_jobs for room in self.rooms.values())


class Sites:
    def __init__(self, own: str, names: tuple[str, ...], now: Now) -> None:
        self.own = own
        self._sites = {name: Site(name=name, heard=now.mono) for name in (own, *names)}
        self._breakers: dict[str, Breaker] = {}
        self.freed = 0  # jobs that ended since waiting ones were last woken
        self.more = 0  # jobs for which there is room, since waiting ones were last woken for that
        self.woken_at = -math.inf  # when that was

    def follow(self, names: tuple[str, ...], now: Now) -> None:
        """These are the others from now on. Of one that is no more, nothing is known, as after a restart."""
        self._sites = {name: self._sites.get(name) or Site(name=name, heard=now.mono) for name in (self.own, *names)}

    def __getitem__(self, name: str) -> Site:
        return self._sites[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sites

    def all(self) -> tuple[Site, ...]:
        return tuple(self._sites.values())

    def linked(self, name: str) -> bool:
        return name in self._sites and self._sites[name].linked

    def offered(self, site: str, rooms: Rooms, now: Now) -> None:
        """Take a site's list of pools."""
        known = self._sites[site]
        before, before_rooms = known.free_jobs(), known.rooms
        known.rooms = {room.pool: room for room in rooms.pools}
        gone = {f"{site}/{name}" for name in before_rooms} - {f"{site}/{name}" for name in known.rooms}
        for name in gone & self._breakers.keys():
            del self._breakers[name]
        known.full_at = {pool: at for pool, at in known.full_at.items() if now.mono - at < WARY_S}
        for pool in known.full_at.keys() & known.rooms.keys():
            room = known.rooms[pool]
            known.rooms[pool] = replace(room, free_jobs=min(room.free_jobs, WARY_JOBS))
        self.more += max(0, known.free_jobs() - before)

    def took(self, site: str, pool: str) -> None:
        """It has let a job of ours in."""
        self._sites[site].has(pool, -1)

    def moved(self, site: str, size: int, seconds: float) -> None:
        """So much of one job's input has travelled there. A site that is no more is none to learn of."""
        if site in self._sites and size >= LEAST_MOVED:
            known = self._sites[site]
            known.byte_s += (max(seconds, MOVES_S) / size - known.byte_s) * NEWEST

    def chose(self, pool: Pool, left: Room) -> None:
        """For a job of ours. Its CPUs and slices are no other's, until its site tells anew."""
        self._sites[pool.site].rooms[left.pool] = left

    def ended(self, site: str, pool: str, cpus: int) -> None:
        """A job of ours there is over: that makes room for another."""
        self._sites[site].has(pool, +1, cpus)
        self.freed += 1

    def full(self, site: str, pool: str, why: str, now: Now) -> None:
        """It had no room when asked: it has none until its site tells of some, or a job of ours there ends."""
        known = self._sites[site]
        known.full_at[pool] = now.mono
        if (room := known.rooms.get(pool)) is not None:
            known.rooms[pool] = replace(room, free_jobs=0, why=why)

    def breaker(self, pool: str) -> Breaker:
        """Of SITE/POOL."""
        return self._breakers.setdefault(pool, Breaker())

    def pools(self, jobs: Counter[tuple[Origin, str, str]], now: Now) -> list[Pool]:
        """All there are, with what we sent there and their room does not count yet."""
        found = [
            Pool(
                site=site.name,
                room=room,
                linked=site.linked and now.mono - site.heard <= SILENT_S,
                local=site.name == self.own,
                cools_for_s=self.breaker(f"{site.name}/{room.pool}").cools_for(now.mono),
                bytes_per_s=1 / site.byte_s,
                sent=jobs[Origin.SENDING, site.name, room.pool] + jobs[Origin.UNKNOWN, site.name, room.pool],
            )
            for site in self._sites.values()
            for room in site.rooms.values()
        ]
        return found[:MAX_POOLS]
