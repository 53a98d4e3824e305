"""The use cases: accept, choose, submit, follow, cancel, stage, reconcile.

Here: what a site does with a job, as origin and as target, as functions over the journal that tell effects: no thread,
clock or socket, so that a simulation runs the same code.
Not here: how effects are done (`federation.executors`, `federation.peer`), nor how a transaction becomes durable.
"""
