"""The planner, pure: what waits and what is promised, against what every GPU holds: what to re-cut, and why.

Not here: time, randomness, logging, anything that knows a node, an agent or Slurm. HiGHS is loaded when first needed.
"""
