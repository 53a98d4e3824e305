"""Tests of the catalogue: its text, there and back, and its file.

Nothing here may start a daemon or ask Slurm.
"""
