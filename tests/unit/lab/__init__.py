"""Units of the lab: descriptions, files, keepers and processes.

No Slurm daemon may be started here.
"""
