"""PURE: the rows of the one table of faults, `slurm_plugin.findings.FAULTS`, by what they are faults of.

A row is three texts with the names of facts in braces. What finds a fault must not live here.
"""
