"""PURE: every fault that `vgpu doctor` and `vgpu render --check` know: one table, and the values made from it.

A check says what it saw as `found(code, facts)`; what that means and the line that mends it are in the table's rows, in
`slurm_plugin.faults`, and nowhere else.
docs/doctor.md shows this table, and a test plants each of its faults.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_plugin.faults.fault import Fault
from slurm_plugin.faults.files import FILES
from slurm_plugin.faults.jobs import JOBS
from slurm_plugin.faults.pool import COUNTS, GPUS, REACH
from slurm_plugin.faults.slurm import NODES, SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str  # stable, for scripts
    what: str  # the fault, one line
    why: str  # what it does to jobs
    paste: str  # the line or command that mends it


def found(code: str, **facts: object) -> Finding:
    """The fault of this code with these facts. Raises KeyError for one that the table does not have."""
    fault = FAULTS[code]
    what, why, paste = (text.format_map(facts) for text in (fault.what, fault.why, fault.paste))
    return Finding(code=code, what=what, why=why, paste=paste)


def lasting(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The second look's findings, less those that pass by themselves and were not there at the first."""
    before = {(finding.code, _subject(finding)) for finding in first}
    return tuple(f for f in second if not FAULTS[f.code].passing or (f.code, _subject(f)) in before)


def _subject(finding: Finding) -> str:
    """Node and job, GPU or class: what a finding is about, without the numbers that change."""
    return " ".join(finding.what.split()[:3])


FAULTS: Mapping[str, Fault] = REACH | COUNTS | JOBS | GPUS | FILES | SETTINGS | NODES
