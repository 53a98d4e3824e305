"""Tests of the federation's pure parts, each alone.

Here: model, policy, named queries.
No disk, thread, clock or socket may live here.
"""
