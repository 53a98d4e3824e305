"""Tests of the journal on a real disk.

Here: opening, group commit, full disks, deaths at every durable write.
No engine's decisions.
"""
