"""The pool on a real Slurm: daemons, hooks and commands in a lab on this machine, with simulated GPUs.

Fakes, and tests of one part alone, do not belong here.
"""
