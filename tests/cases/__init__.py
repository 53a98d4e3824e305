"""Requests and what they mean, as data that the tests of both readers share.

Tests do not belong here.
"""
