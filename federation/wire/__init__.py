"""The border between messages and their protobuf.

Here: both directions of the conversion, refusing what no site may send, and how two versions meet.
Not here: sockets, TLS, streams (`federation.server`, `federation.peer`).
"""
