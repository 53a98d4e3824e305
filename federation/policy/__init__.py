"""PURE: when and where a job goes.

Here: how well pools suit a job, what a site takes from a peer, when a pool is left alone for a while.
Not here: what happens to a job then (`federation.engine`), and where the facts about pools come from.
"""
