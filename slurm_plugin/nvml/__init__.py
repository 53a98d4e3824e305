"""Adapter: this node's GPUs through NVIDIA's management library (pynvml). Implements slurm_plugin.ports.Gpus.

Here: reading what is there, making one step and reading it back, and telling why not. Not here: which layout is wanted,
who has a slice, device files' owners, or anything that only the simulated library knows.
"""

from slurm_plugin.nvml.gpus import NvmlGpus

__all__ = ["NvmlGpus"]
