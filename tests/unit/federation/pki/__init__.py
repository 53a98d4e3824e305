"""Names, certificates and verdicts on them, without a file or a socket.

Here: `federation.pki`'s pure parts, and its files against a folder.
Not here: TLS.
"""
