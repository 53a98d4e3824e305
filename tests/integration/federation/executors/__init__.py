"""Tests of the pools backends against real daemons and files, each part alone.

Mirrors federation/executors. Nothing of another folder's.
"""
