"""The controller over its real link, with a fake Slurm.

Here: fake agents on real sessions, offers, layouts, fences, restarts of slurmctld.
Not here: a real Slurm or a real agent; that is e2e.
"""
