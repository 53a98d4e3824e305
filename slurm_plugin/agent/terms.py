"""PURE: what the controller last said. The agent binds by these terms while the controller is away too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.ports import GresItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    gres_class: str  # empty: withheld
    ask: bool = False  # on release, wait for the controller's verdict before the epilog returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    offers: Mapping[str, Offer] = field(default_factory=dict)  # by MIG UUID
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # profiles that serve a class, best first
    gpus: frozenset[str] = frozenset()  # UUIDs of the pool's GPUs on this node
    others: frozenset[str] = frozenset()  # of those that are not; one in neither was not told of
    observe: bool = False  # jobs get what is there, and nothing else changes on this node
    reset_gpus: bool = False  # an idle GPU may be reset to bring it into MIG mode

    @property
    def changeable(self) -> frozenset[str]:
        """The GPUs that may be switched to MIG, cut, mended and sealed."""
        return frozenset() if self.observe else self.gpus

    def profiles(self, gres_class: str) -> tuple[str, ...]:
        """What serves a class, best first. A class nobody told us of can only be a profile's own name."""
        return self.classes.get(gres_class, (gres_class,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What one run asks of this node."""

    gres_class: str
    count: int
    begins_at: int = 0  # Unix seconds
    ends_at: int = 0  # at its time limit; 0: none, or not known


def wanted(gres: Sequence[GresItem], *, name: str = "vgpu", pad: str = "pad") -> Want | None:
    """A run's request as job_submit rewrote it: the one class it has. None: it asks for no slice.

    Padding is never bound, whatever `--exclusive` made Slurm grant.
    """
    items = [item for item in gres if item.name == name and item.type != pad and item.count > 0]
    return Want(gres_class=items[0].type, count=items[0].count) if items else None
