"""A job's identity: minted where it was submitted, durable there before anything is sent, never made anew.

A scheduler's job id is no identity: one that crashed hands the same id to another job.
"""

from dataclasses import dataclass
from uuid import UUID

RANDOM_BYTES = 10  # that `mint` wants
MAX_MS = (1 << 48) - 1  # of the time in a token


def mint(at_ms: int, random: bytes) -> UUID:
    """A UUID of version 7: tokens minted later sort later. Source: RFC 9562, section 5.7.

    Raises ValueError for a time before 1970 or after 10889, or for too few random bytes.
    """
    if not 0 <= at_ms <= MAX_MS or len(random) != RANDOM_BYTES:
        raise ValueError("a token wants a time of 48 bits and 10 random bytes")
    low = int.from_bytes(random, "big")
    return UUID(int=at_ms << 80 | 7 << 76 | (low >> 64 & 0xFFF) << 64 | 2 << 62 | low & (1 << 62) - 1)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One attempt of one job: what commands name, so that a late one never hits a newer attempt."""

    token: UUID
    attempt: int

    def __str__(self) -> str:
        return f"{self.token}/{self.attempt}"
