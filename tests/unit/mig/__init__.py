"""Geometry against what real GPUs were seen to do, and against brute force.

Here: listings, creation traces and layout counts as oracles, generated states for changes of layout.
Not here: NVML, simulated or real; its adapter has tests of its own.
"""
