"""Tests of the hook client as Slurm runs it: the built binary against a socket.

No Slurm daemon may live here.
"""
