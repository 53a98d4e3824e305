"""Tests of slurm_plugin.trust.

Nothing else belongs here.
"""
