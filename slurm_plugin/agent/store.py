"""What must outlive the agent: grants, the controller's last word, and the leases of steps. One JSON file each."""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_plugin.agent.terms import Terms
from slurm_plugin.model import Grant, RunKey

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20  # longest file we read back


class Store:
    """A folder of root's. Writes are atomic: a crash leaves the old file or the new one, perhaps beside a stray."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._grants = folder / "grants"

    def open(self) -> None:
        """Make the folders, and sweep what a crash left. Raises OSError."""
        for folder in (self._folder, self._grants):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            for stray in folder.glob(".new-*"):
                stray.unlink(missing_ok=True)

    def save(self, grant: Grant) -> None:
        """Durable when it returns. Raises OSError."""
        run = grant.run
        facts = {
            **{"job_id": run.job_id, "started_at": run.started_at, "uid": run.uid},
            **{"class": grant.gres_class, "count": grant.count, "slices": grant.slices, "made_at": grant.made_at},
        }
        _write(self._path(run.job_id), facts, durable=True)

    def delete(self, job_id: int) -> None:
        """Crash: the file may come back; reconciling with Slurm then drops it again. Raises OSError."""
        self._path(job_id).unlink(missing_ok=True)

    def grants(self) -> tuple[Grant, ...]:
        """All of them. A file that makes no sense is set aside as `*.bad` and logged."""
        found = []
        for path in sorted(self._grants.glob("*.json")):
            try:
                found.append(_grant(_read(path)))
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                log.exception("grant.unreadable", extra={"path": str(path)})
                path.replace(path.with_suffix(".bad"))
        return tuple(found)

    def save_terms(self, terms: Terms) -> None:
        """What binding needs while the controller is away: classes and the pool's GPUs. Offers die with the session."""
        _write(self._folder / "terms.json", {"classes": dict(terms.classes), "gpus": sorted(terms.gpus)}, durable=True)

    def terms(self) -> Terms:
        """The last ones saved, or none."""
        try:
            facts = _read(self._folder / "terms.json")
            classes = {str(name): tuple(str(one) for one in profiles) for name, profiles in facts["classes"].items()}
            return Terms(classes=classes, gpus=frozenset(str(one) for one in facts["gpus"]))
        except FileNotFoundError:
            return Terms()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            log.exception("terms.unreadable")
            return Terms()

    def save_leases(self, leases: Mapping[str, tuple[str, ...]]) -> None:
        """By step process ("pid:start"). They need to survive the agent, not the machine."""
        _write(self._folder / "leases.json", dict(leases), durable=False)

    def leases(self) -> dict[str, tuple[str, ...]]:
        try:
            facts = _read(self._folder / "leases.json")
            return {str(key): tuple(str(one) for one in slices) for key, slices in facts.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            log.exception("leases.unreadable")
            return {}

    def _path(self, job_id: int) -> Path:
        return self._grants / f"{job_id}.json"


def _grant(facts: Any) -> Grant:
    return Grant(
        run=RunKey(job_id=int(facts["job_id"]), started_at=int(facts["started_at"]), uid=int(facts["uid"])),
        gres_class=str(facts["class"]),
        count=int(facts["count"]),
        slices=tuple(str(one) for one in facts["slices"]),
        made_at=float(facts["made_at"]),
    )


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.loads(file.read(MAX_FILE_BYTES))


def _write(path: Path, facts: Any, *, durable: bool) -> None:
    handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(facts, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
