"""PURE: the slices that the jobs of each account hold: what counts towards a guarantee beside what is idle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_plugin.guarantees import Promise

ANYBODY = ""  # all accounts together

_ByAccount = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    slices: _ByAccount = field(default_factory=dict)  # account -> profile -> slices
    unseen: _ByAccount = field(default_factory=dict)  # account -> class -> slices that no agent has told of

    def of(self, promise: Promise, profiles: Mapping[str, Iterable[str]]) -> int:
        """How many may count for it. `profiles`: what serves each class.

        One that no agent has told of may be any that its class allows, and counts wherever it may: for a guarantee that
        seems to lack something GPUs are re-cut and jobs put first, and neither is taken back.
        """
        account, serve = promise.guarantee.account, promise.served.profiles
        known, unseen = self.slices.get(account, {}), self.unseen.get(account, {})
        maybe = (count for name, count in unseen.items() if not set(serve).isdisjoint(profiles.get(name, ())))
        return sum(known.get(profile, 0) for profile in serve) + sum(maybe)
