"""Tests of the pools' backends: integration level.

Mirrors federation/executors. Nothing of another folder's.
"""
