"""Overflow's side of the cluster's own Slurm: the same checks on live daemons and on what each release has printed.

Nothing that changes a job, which is in tests/e2e/test_overflow_slurm.py.
"""
