"""The links to other sites: gRPC out, and the one place that knows which sites can be reached now.

Here: sessions over a stream, whoever opened it; dialling, and dialling again.
Not here: TLS (`federation.pki`), what a message means (`federation.engine`).
"""
