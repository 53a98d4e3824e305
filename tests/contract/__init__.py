"""One suite a port, run on the fake and on the real thing, or on what real daemons of each release printed.

Here: suites and their recordings. Not here: tests of one module's logic.
"""
