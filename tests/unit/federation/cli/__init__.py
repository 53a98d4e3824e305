"""The `fed` command line, run in this process on folders of the test's own.

Here: `federation.cli`.
Not here: what the commands do.
"""
