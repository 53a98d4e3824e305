"""The planner's tests: oracles, every small case against trying everything, and what holds for any input.

Not here: how fast it is (benchmarks), and what comes of it over time (tests/simulation).
"""
