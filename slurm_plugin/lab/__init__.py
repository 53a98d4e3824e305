"""A whole Slurm site with simulated GPUs on one machine: described, rendered, started, broken and taken down.

Real Slurm daemons, the pool's own daemons and the simulated NVML library are put together here, for tests, the demo and
rehearsals. Nothing that a real cluster runs may live here or depend on it.
"""
