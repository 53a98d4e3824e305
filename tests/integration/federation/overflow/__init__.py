"""Overflow over a real journal: bursts on record, reconciliation with a Slurm of the test's own.

Here: real SQLite, a real Runner, and a fake of the cluster's slurmctld.
Not here: real Slurm daemons, which are in tests/e2e; the wire of the proxy, in tests/unit.
"""
