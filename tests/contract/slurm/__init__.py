"""The Slurm port: one suite, played on recordings of each release here and on live daemons in tests/e2e.

Here: the scene that is recorded, its checks, the recordings. Not here: parsers' own cases.
"""
