"""Unit tests of the overflow from Slurm.

Here: its pure parts, and decisions of the others with everything outside played.
No Slurm and no process may live here.
"""
