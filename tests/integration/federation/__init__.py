"""Tests of the federation on real files, threads and sockets, on this machine alone.

Here: the journal, and what is built on it.
No scheduler's daemons: those are in tests/e2e.
"""
