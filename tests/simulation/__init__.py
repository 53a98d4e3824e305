"""Many sites in one process, on a clock of their own: what chance and faults make of them.

Here: seeded worlds that run the real engine over the real journal (in memory), and the invariants that must hold.
Not here: real daemons, sockets or disks; those are `integration` and `e2e`.
"""
