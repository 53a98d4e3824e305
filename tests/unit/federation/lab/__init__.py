"""Unit tests of two sites on one machine, and of the demo on them.

Here: what is written for them, and that the demo fails when a step did not do what it claims.
No Slurm daemon may be started here.
"""
