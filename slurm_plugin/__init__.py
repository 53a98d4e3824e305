"""The pool: MIG slices of a cluster's GPUs under Slurm.

Here: geometry, requests, adapters to NVML and Slurm, the agent, the controller, hooks, the lab and the `vgpu` command.
Not here: anything between sites; that is `federation`, which this package never imports.
"""
