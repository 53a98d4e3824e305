"""What other sites call: gRPC in.

Here: the service's streams, handed to the runner.
Not here: who may call (`federation.pki.gate`), what a message means (`federation.engine`).
"""
