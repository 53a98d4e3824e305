"""Bytes between sites on real files, with the two ends in one process and no wire between.

Here: what a far side that misbehaves can't do. Not here: real daemons (`tests.integration.federation.test_daemons`).
"""
