"""The link on real gRPC and a real munged.

Here: the handshake both ways, what is refused, how a session ends.
Not here: what the controller does with a session.
"""
