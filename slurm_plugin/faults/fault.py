"""PURE: a row of the table, and what many rows say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """Texts with the facts' names in braces."""

    what: str
    why: str
    paste: str
    passing: bool = False  # may be so for a moment and right itself: told only when two looks find it


RECOUNT = "systemctl restart vgpu-controller"  # it writes counts and catalogue anew
