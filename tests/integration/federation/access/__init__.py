"""Rules that the kernel helps to keep: paths, users, sockets, and the audit log's file.

Here: `federation.access` on real files, as a real other user.
Not here: pure rules.
"""
