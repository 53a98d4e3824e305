"""Adapters of Slurm as processes of their own, with a library of Slurm's that the test plays.

Here: how they start, fail and end. Not here: real daemons, those are in tests/e2e.
"""
