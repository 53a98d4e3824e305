"""Unit tests of bytes between sites.

Here: chunks, statuses, what the origin keeps. Not here: real daemons and gRPC (`tests.integration.federation`).
"""
