"""PURE: MIG geometry. Products, profiles, placements, layouts, and how one layout becomes another.

Here: the table of products, and reasoning on any GPU's profiles, be they the table's or what a GPU answered itself.
Not here: NVML, Slurm, clocks, files (but for our own table), or which job gets which slice.
"""
