"""What must outlive the agent: grants, runs that lost a slice, the controller's last word, and the leases of steps."""

import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from slurm_plugin import atomic
from slurm_plugin.agent import durable
from slurm_plugin.agent.terms import Terms
from slurm_plugin.model import Grant, RunKey

log = logging.getLogger(__name__)


PROBE_BYTES = 4096  # as much room as a grant takes
MARK_MODE = 0o711  # of the marks' folder: users' tasks look for one name and can list none


class Store:
    """A folder of root's. Writes are atomic: a crash leaves the old file or the new one, perhaps beside a stray.

    `marks`: a file a run without slices, "START UID", which the hooks read and write too. They end with the boot, so it
    is best where nothing outlives one.
    """

    def __init__(self, folder: Path, *, marks: Path | None = None, at: durable.At = durable.nowhere) -> None:
        self.folder = folder
        self._at = at
        self._grants = folder / "grants"
        self._marks = marks or folder / "plain"

    def open(self) -> None:
        """Make the folders, and sweep what a crash left. Raises OSError."""
        for folder in (self.folder, self._grants):
            durable.make_folder(folder)
        self._marks.mkdir(parents=True, exist_ok=True)
        self._marks.chmod(MARK_MODE)

    def save(self, grant: Grant) -> None:
        """Outlives the agent when it returns. Not the machine: no run does, and a prolog would wait for the disk.

        Raises OSError.
        """
        run = grant.run
        facts = {
            **{"job_id": run.job_id, "started_at": run.started_at, "uid": run.uid},
            **{"class": grant.gres_class, "count": grant.count, "slices": grant.slices, "made_at": grant.made_at},
            "ends_at": grant.ends_at,
        }
        durable.write(self.path(run.job_id), facts, at=self._at, lasting=False)

    def delete(self, job_id: int) -> None:
        """Crash: the file may come back; reconciling with Slurm then drops it again. Raises OSError."""
        durable.delete(self.path(job_id), at=self._at)

    def delete_stale(self, run: RunKey) -> None:
        """Delete this run's file, if it is still this run's. Raises OSError."""
        path = self.path(run.job_id)
        try:
            if _grant(durable.read(path)).run != run:
                return
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return
        durable.delete(path, at=self._at)

    def probe(self) -> None:
        """Could a grant be written and deleted now? Raises OSError when not."""
        path = self._grants / ".probe"
        path.write_bytes(bytes(PROBE_BYTES))
        path.unlink()

    def save_plain(self, run: RunKey) -> None:
        """Raises OSError."""
        mark = f"{run.started_at} {run.uid}\n".encode()
        atomic.write(f"{self._marks}/{run.job_id}", mark, mode=0o600, lasting=False)

    def delete_plain(self, job_id: int) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._marks}/{job_id}")  # noqa: PTH108 - see atomic

    def plain(self) -> tuple[RunKey, ...]:
        """The runs that have a mark; what is no mark is taken away. An epilog may take its own meanwhile.

        Raises OSError.
        """
        found = []
        for path in sorted(self._marks.iterdir()):
            try:
                started_at, uid = path.read_text().split()
                found.append(RunKey(job_id=int(path.name), started_at=int(started_at), uid=int(uid)))
            except FileNotFoundError:
                continue
            except ValueError:
                log.warning("mark.unreadable", extra={"path": str(path)})
                path.unlink(missing_ok=True)
        return tuple(found)

    def grants(self) -> tuple[tuple[Grant, ...], frozenset[int]]:
        """All of them, and the jobs whose file makes no sense. Raises OSError: what is on file can't be told now.

        What no grant can be, having no job's name, is set aside as `*.bad`.
        """
        found, garbled = [], set[int]()
        for path in sorted(self._grants.glob("*.json")):
            try:
                found.append(_grant_of(path.stem, durable.read(path)))
            except (ValueError, TypeError, KeyError, AttributeError):
                log.exception("grant.unreadable", extra={"path": str(path)})
                if path.stem.isdecimal():
                    garbled.add(int(path.stem))
                else:
                    path.replace(path.with_suffix(".bad"))
        return tuple(found), frozenset(garbled)

    def save_terms(self, terms: Terms) -> None:
        """What binding needs while the controller is away: classes and the pool's GPUs. Offers die with the session."""
        facts = {
            **{"classes": dict(terms.classes), "gpus": sorted(terms.gpus)},
            **{"observe": terms.observe, "reset_gpus": terms.reset_gpus},
        }
        durable.write(self.folder / "terms.json", facts, at=self._at)

    def terms(self) -> Terms:
        """The last ones saved, or none."""
        try:
            facts = durable.read(self.folder / "terms.json")
            classes = {str(name): tuple(str(one) for one in profiles) for name, profiles in facts["classes"].items()}
            gpus = frozenset(str(one) for one in facts["gpus"])
            observe, reset_gpus = (facts.get(name) is True for name in ("observe", "reset_gpus"))
            return Terms(classes=classes, gpus=gpus, observe=observe, reset_gpus=reset_gpus)
        except FileNotFoundError:
            return Terms()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            log.exception("terms.unreadable")
            return Terms()

    def save_leases(self, leases: Mapping[str, tuple[str, ...]]) -> None:
        """By step process ("pid:start"). They need to survive the agent, not the machine."""
        durable.write(self.folder / "leases.json", dict(leases), at=self._at, lasting=False)

    def leases(self) -> dict[str, tuple[str, ...]]:
        try:
            facts = durable.read(self.folder / "leases.json")
            return {str(key): tuple(str(one) for one in slices) for key, slices in facts.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            log.exception("leases.unreadable")
            return {}

    def save_lost(self, runs: Collection[RunKey]) -> None:
        """Runs from under which a slice has gone. Durable when it returns. Raises OSError."""
        facts = sorted([run.job_id, run.started_at, run.uid] for run in runs)
        durable.write(self.folder / "lost.json", facts, at=self._at)

    def lost(self) -> frozenset[RunKey]:
        try:
            facts = durable.read(self.folder / "lost.json")
            return frozenset(RunKey(job_id=int(one), started_at=int(at), uid=int(uid)) for one, at, uid in facts)
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, TypeError):
            log.exception("lost.unreadable")
            return frozenset()

    def path(self, job_id: int) -> str:
        """Where a job's grant is. Text: see atomic."""
        return f"{self._grants}/{job_id}.json"


def _grant_of(job: str, facts: Any) -> Grant:
    grant = _grant(facts)
    if job != str(grant.run.job_id):
        raise ValueError(f"it is of job {grant.run.job_id}")
    return grant


def _grant(facts: Any) -> Grant:
    return Grant(
        run=RunKey(job_id=int(facts["job_id"]), started_at=int(facts["started_at"]), uid=int(facts["uid"])),
        gres_class=str(facts["class"]),
        count=int(facts["count"]),
        slices=tuple(str(one) for one in facts["slices"]),
        made_at=float(facts["made_at"]),
        ends_at=int(facts.get("ends_at", 0)),
    )
