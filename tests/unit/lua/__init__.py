"""Tests of vgpu.lua in both Lua interpreters that Slurm is built with.

Nothing here may start Slurm: what only a daemon can show belongs to tests/contract and tests/e2e.
"""
