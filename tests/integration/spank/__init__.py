"""The plugins and the proxy of jobs that run elsewhere, each alone: no Slurm, and a daemon that the test plays.

Here: those, built to end at the first read out of bounds. Not here: what a real slurmctld and slurmd make of them.
"""
