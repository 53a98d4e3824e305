"""Free TCP ports on loopback."""

import random
import socket

from slurm_plugin.errors import LabError

# Below the kernel's ephemeral range (32768 on), so that no outgoing connection takes one while a daemon restarts.
FIRST_PORT = 10_000
LAST_PORT = 31_999
MAX_TRIES = 2_000


def free_ports(count: int, taken: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """`count` different ports that nobody listens on now, none of `taken`.

    They are drawn at random, so that two labs that start at once hardly ever draw the same.
    Raises LabError after MAX_TRIES draws.
    """
    found: list[int] = []
    for _ in range(MAX_TRIES):
        if len(found) == count:
            return tuple(found)
        port = random.randint(FIRST_PORT, LAST_PORT)  # noqa: S311 - no secret
        if port not in found and port not in taken and _is_free(port):
            found.append(port)
    raise LabError(f"found only {len(found)} free ports of {count} between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - the strictest test there is; closed at once
        except OSError:
            return False
    return True
