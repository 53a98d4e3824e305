"""One suite for every backend of a pool, on the real thing: processes, Slurm, Slurm behind a real sshd.

Mirrors federation/executors. Nothing of another folder's.
"""
