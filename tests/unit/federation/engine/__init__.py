"""Tests of what a site does with a job, one event at a time, over a journal in memory.

Here: each rule of the engine, named; `bench` has the two sites that they need.
No disk, thread, clock or socket may live here; many events at once are tests/simulation.
"""
