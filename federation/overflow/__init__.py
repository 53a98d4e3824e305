"""Slurm jobs that run at another site: a burst is a Slurm job on a virtual node and the job between sites that does it.

Here: what such a job means in Slurm, the socket of its proxy, when jobs may flow over, the virtual nodes.
Not here: moving bytes, choosing a pool, exactly-once: those are the federation's own (`engine`, `stage`, `policy`).
"""
