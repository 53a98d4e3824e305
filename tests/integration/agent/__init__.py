"""Tests of the agent's parts together: real files, threads, sockets and processes, with the ports faked.

No Slurm daemon may live here.
"""
