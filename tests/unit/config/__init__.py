"""Tests of the pool's configuration file.

Here: what pool.yaml may say and how a wrong one is told.
Not here: what the controller does with it.
"""
