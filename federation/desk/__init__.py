"""Where this host's own users come: a unix socket, and the kernel's word on who is there.

Here: what goes over that socket, and who may ask what.
Not here: the command line (`federation.cli`), other sites (`federation.server`).
"""
