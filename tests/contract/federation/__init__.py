"""Contract tests of the federation: one suite a port, run on every adapter of it.

Nothing that only one adapter does.
"""
