"""Tests of the border between messages and protobuf.

Here: every message there and back, and what is refused on its way in.
No socket may live here.
"""
