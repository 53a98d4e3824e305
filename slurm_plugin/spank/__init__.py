"""What Slurm loads so that a batch job can run elsewhere: two SPANK plugins, the proxy and a task prolog.

Here: those small C programs and their Makefile, and no Python. Decisions belong to the federation's daemon.
"""
