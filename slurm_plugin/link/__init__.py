"""The link between controller, agents and command line: gRPC over TLS, trusted through munge.

Here: munge, the server's identity, both ends of the handshake, the wire's streams with errors of this product.
Not here: what the messages mean; that is the agent's and the controller's.
"""
