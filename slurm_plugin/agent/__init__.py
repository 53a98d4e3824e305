"""The agent: root's daemon on a GPU node. It owns the node's instances, says which job has which, and guards devices.

`book`, `choose`, `layout`, `quarantine`, `terms` are pure and decide; `runs`, `slices`, `changes`, `tasks` drive them.
How the pool should be cut is the controller's business, and no word of that may live here.
"""
