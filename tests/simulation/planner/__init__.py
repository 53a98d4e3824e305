"""What becomes of a pool over hours, on a clock that is counted: every run tells its seed.

Not here: figures (benchmarks), and anything that runs a daemon.
"""
