"""The one program that Slurm runs on a node for us: a small static C client of the agent, and its Makefile.

It only carries integers to the agent and prints what comes back. No decision and no Python may live here.
"""
