"""The `fed` command line.

Here: its commands and how they print.
Not here: anything about one cluster's GPUs; that is `vgpu`.
"""
