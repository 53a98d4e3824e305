"""Rules about what others may do, and texts that try to get around them.

Here: `federation.access`'s pure parts.
Not here: real files, users and sockets.
"""
