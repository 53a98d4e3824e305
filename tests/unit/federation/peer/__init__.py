"""Tests of `federation.peer` without a socket.

Here: what one session puts on its stream, and what it makes of what comes.
Not here: gRPC, TLS and cut links (tests/integration/federation).
"""
