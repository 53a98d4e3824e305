"""A job's identity: minted where it was submitted, durable there before anything is sent, never made anew.

A scheduler's job id is no identity: one that crashed hands the same id to another job.
"""

from dataclasses import dataclass
from uuid import UUID

RANDOM_BYTES = 10  # that `mint` wants
TASK_BITS = 20
MAX_TASK = (1 << TASK_BITS) - 1
_HIDDEN = TASK_BITS // 4  # last characters of a task's token: the others are its array's name
MAX_MS = (1 << 48) - 1  # of the time in a token


def mint(at_ms: int, random: bytes) -> UUID:
    """A UUID of version 7: tokens minted later sort later. Source: RFC 9562, section 5.7.

    Raises ValueError for a time before 1970 or after 10889, or for too few random bytes.
    """
    if not 0 <= at_ms <= MAX_MS or len(random) != RANDOM_BYTES:
        raise ValueError("a token wants a time of 48 bits and 10 random bytes")
    low = int.from_bytes(random, "big")
    return UUID(int=at_ms << 80 | 7 << 76 | (low >> 64 & 0xFFF) << 64 | 2 << 62 | low & (1 << 62) - 1)


def of_task(token: UUID, task: int) -> UUID:
    """A task's own token in the array that was minted as this: of version 8, and its last bits are its number.

    So all of an array's tokens follow each other, and begin with its name. Raises ValueError.
    """
    if not 0 <= task <= MAX_TASK:
        raise ValueError(f"a task's number is at most {MAX_TASK}")
    return UUID(int=token.int & ~(0xF << 76 | MAX_TASK) | 8 << 76 | task)


def array_of(token: UUID) -> tuple[str, int] | None:
    """The array's name and the task's number; None for a job that is no task of an array."""
    return (str(token)[:-_HIDDEN], token.int & MAX_TASK) if token.version == 8 else None


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One attempt of one job: what commands name, so that a late one never hits a newer attempt."""

    token: UUID
    attempt: int

    def __str__(self) -> str:
        return f"{self.token}/{self.attempt}"
