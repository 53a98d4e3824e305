"""Bytes between sites: inputs, outputs, and files to bring back, resumed where they were cut and whole by their hashes.

Here: what a target gives and takes, the origin's mover, and the origin's own folder of a job.
Not here: gRPC servers (`federation.server`), what is done with a job (`federation.engine`).
"""
