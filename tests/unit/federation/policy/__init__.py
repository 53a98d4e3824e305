"""Tests of where a job goes and what is let in.

Here: each rule with the reason that it gives.
No engine.
"""
