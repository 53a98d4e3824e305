"""Measure: one JSON line a figure as it comes, then one table. `python -m benchmarks [NAME...]` runs only those."""

import importlib
import os
import sys

from benchmarks.row import Row

MODULES = (
    *("submit", "lua_call", "node", "controller_pass", "demand", "fence", "planner", "online", "recut"),
    *("federation_forward", "federation_logs", "federation_recovery", "federation_memory"),
    *("federation_burst", "federation_burst_slurm"),
)


def main(wanted: list[str]) -> int:
    """Exit code 0 when every bound was kept, 1 when one was missed, 2 when a name is wrong."""
    if unknown := set(wanted) - set(MODULES):
        sys.stderr.write(f"error: no such benchmark: {', '.join(sorted(unknown))}\nhint: {', '.join(MODULES)}\n")
        return 2
    sys.stderr.write(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores\n")
    rows: list[Row] = []
    for name in wanted or MODULES:
        for row in importlib.import_module(f"benchmarks.{name}").measure():
            print(row.line(), flush=True)
            rows.append(row)
    sys.stderr.write("\n".join(_table(rows)) + "\n")
    return int(any(row.verdict == "MISSED" for row in rows))


def _table(rows: list[Row]) -> list[str]:
    lines = [f"{'what':<44}{'measured':>12} {'unit':<6}{'bound':>9}  verdict"]
    for row in rows:
        bound = "-" if row.bound is None else f"{row.bound:g}"
        noisy = f"  noisy (load {row.load:.2f} a core)" if row.noisy else ""
        lines.append(f"{row.name:<44}{row.value:>12.3f} {row.unit:<6}{bound:>9}  {row.verdict}{noisy}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
