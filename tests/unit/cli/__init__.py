"""Tests of the `vgpu` and `fed` command lines that need no daemon.

Here: views, tables, JSON shapes, what `doctor` finds, start-up and exit codes.
Not here: anything that opens a socket.
"""
