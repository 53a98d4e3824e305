"""Tests of the pools' backends: unit level.

Mirrors federation/executors. Nothing of another folder's.
"""
