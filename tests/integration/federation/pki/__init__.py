"""Certificates on real TLS: a CA in a folder, grpc.aio on loopback, one certificate a kind of stranger.

Here: `federation.pki` end to end.
Not here: rules about what a believed peer may do.
"""
