"""Records that were read or written a moment ago, as they are in the journal: most are wanted again at once."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST_KEPT = 4096  # records; the oldest goes first


class Recent(Generic[K, V]):
    """Whoever changes rows behind it clears it."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._kept: dict[K, V] = {}
        self._most = most

    def get(self, key: K) -> V | None:
        return self._kept.get(key)

    def put(self, key: K, value: V) -> None:
        self._kept.pop(key, None)
        self._kept[key] = value
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        self._kept.clear()
