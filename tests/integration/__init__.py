"""Tests of parts working together over real transports.

Here: real gRPC, munge, sockets and files, with fakes at the ports.
Not here: a real Slurm; that is e2e.
"""
