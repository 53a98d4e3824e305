"""The federation's engine in a world of crashes, cuts, duplicates, reordering and stepped clocks.

Here: the world (clock, links, backends, sites), its faults, and what must hold at every moment and in the end.
Not here: any second version of what the engine does.
"""
