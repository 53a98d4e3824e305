"""The controller's own decisions on a clock that is counted: Slurm and the agents are models, all else is what runs.

Not here: figures (benchmarks), and anything that runs a daemon.
"""
