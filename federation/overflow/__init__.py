"""Overflow: a job of this cluster's Slurm that runs at another site, and stays that Slurm's job.

Here: what such a job is on record, what Slurm is asked and told about it, when a waiting job may go, and its proxy.
Not here: moving jobs and bytes between sites, which is the engine's and the mover's; running them: `executors`.
"""
