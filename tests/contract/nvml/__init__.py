"""The GPU port and the simulated NVML library, both through real pynvml.

Here: one suite for slurm_plugin.ports.Gpus (simulator, or a real GPU), and what the simulator promises its clients.
Not here: what daemons do with GPUs.
"""
