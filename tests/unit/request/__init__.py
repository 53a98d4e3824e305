"""Tests of what the text of a request means, in Python and in Lua.

Pure: nothing here may start a daemon; the cases are data in tests/cases.
"""
