"""The journal of layouts: one file a GPU, durable before the first call of a step and again after its last.

A file is read as a whole or refused as a whole: version, GPU and checksum must be right. A refused one stays where it
is, and nothing is changed on its GPU until somebody has looked.
"""

import json
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_plugin.agent import durable
from slurm_plugin.agent.layout import Record, Shape

log = logging.getLogger(__name__)

VERSION = 1


class Journal:
    """Blocking; on the disk thread. `refused` says, by GPU, why a file is not believed.

    Crash: each file says what was before a step, what was to come of it, or what came of it.
    """

    def __init__(self, folder: Path, *, at: durable.At = durable.nowhere) -> None:
        self._folder = folder
        self._at = at
        self._records: dict[str, Record] = {}
        self.refused: dict[str, str] = {}

    def open(self) -> None:
        """Read everything. Raises OSError when the folder can't be used."""
        durable.make_folder(self._folder)
        self._records.clear()
        self.refused.clear()
        for path in sorted(self._folder.glob("*.json")):
            self._take(path)

    def look_again(self) -> None:
        """Was a refused file mended, or taken away?"""
        for gpu in tuple(self.refused):
            del self.refused[gpu]
            if self._path(gpu).exists():
                self._take(self._path(gpu))

    def get(self, gpu: str) -> Record | None:
        return self._records.get(gpu)

    def is_new(self, gpu: str) -> bool:
        return gpu not in self._records and gpu not in self.refused

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._records))

    def put(self, record: Record) -> None:
        """Durable when it returns. Raises OSError, and then the old record stands; also for a refused GPU."""
        if record.gpu in self.refused:
            raise OSError(self.refused[record.gpu])
        if self._records.get(record.gpu) != record:
            durable.write(self._path(record.gpu), _facts(record), at=self._at)
            self._records[record.gpu] = record

    def drop(self, gpu: str) -> None:
        """Raises OSError."""
        durable.delete(self._path(gpu), at=self._at)
        del self._records[gpu]

    def _take(self, path: Path) -> None:
        try:
            self._records[path.stem] = _record(durable.read(path), path.stem)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"the journal {path} can't be believed ({error}): look at the GPU, then remove the file"
            self.refused[path.stem] = why
            log.error("journal.refused", extra={"path": str(path), "error": str(error)})  # noqa: TRY400

    def _path(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.json"


def _facts(record: Record) -> dict[str, Any]:
    facts = {"version": VERSION, "gpu": record.gpu, "had": sorted(record.had), "wanted": sorted(record.wanted)}
    return facts | {"sum": _sum(facts)}


def _sum(facts: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def _record(facts: Any, gpu: str) -> Record:
    said = facts.pop("sum")
    if facts["version"] != VERSION:
        raise ValueError(f"version {facts['version']!r}, not {VERSION}")
    if said != _sum(facts):
        raise ValueError("its checksum is wrong")
    if facts["gpu"] != gpu:
        raise ValueError(f"it is of GPU {facts['gpu']!r}")
    return Record(gpu=gpu, had=_shapes(facts["had"]), wanted=_shapes(facts["wanted"]))


def _shapes(pairs: Any) -> frozenset[Shape]:
    return frozenset((str(profile), int(start)) for profile, start in pairs)
