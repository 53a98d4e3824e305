"""A libnvidia-ml.so.1 whose GPUs live in a file: the C library, and what makes that file.

Here: the C sources and their Makefile, the mirror of their structures, and a product as the library knows it.
Not here: changing a node that exists (slurm_plugin.lab.simgpu), and anything a real GPU needs (slurm_plugin.nvml).
"""
