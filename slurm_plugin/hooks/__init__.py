"""What Slurm itself loads or runs: Lua in slurmctld and on login nodes, and one small C client on the GPU nodes.

Here: those programs. Not here: decisions, which the agent and the controller make.
"""
