"""PURE: what a job between sites is: its spec, its states on both sides, what the sides tell each other.

Here: values and one table of states and events. Time, tokens' randomness and seeds are arguments.
Not here: rows, bytes on a wire, clocks, decisions about where a job goes (`federation.policy`).
"""
