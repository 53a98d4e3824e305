"""Tests of pure code and of single modules.

Here: exhaustive and generated cases, no daemon, no network; all together under 15 s.
Not here: anything that starts a process that outlives a call.
"""
