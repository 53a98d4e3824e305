"""Two Slurm sites on one machine, of which one's jobs may run in the other's pool: what is shown and tested with it.

Here: what the daemon beside each of two labs needs, and `make demo`'s second part.
Not here: a lab itself (`slurm_plugin.lab`), and anything that a daemon imports.
"""
