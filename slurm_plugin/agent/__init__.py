"""The agent: root's daemon on a GPU node. It owns the node's instances, says which job has which slice, and guards their devices.

`book` and `choose` are pure and decide; `engine` drives them; the rest are borders. What the pool should look like is the controller's business.
"""
