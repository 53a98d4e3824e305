"""Tests of what a site's own users may ask, and what they are told.

No daemon and no socket here: those are in the integration tests.
"""
