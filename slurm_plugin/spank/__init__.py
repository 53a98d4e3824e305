"""What Slurm loads so that a batch job can run elsewhere: two SPANK plugins, and the proxy in the script's place.

Here: those three small C programs and their Makefile, and no Python. Decisions belong to the federation's daemon.
"""
