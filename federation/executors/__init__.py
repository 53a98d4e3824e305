"""A pool's backend behind the port `federation.ports.Executor`: this host's own processes, Slurm, Slurm over ssh.

All leave the same files in a job's folder (layout.py), written by one wrapper. No state machine and no policy here.
"""
