"""Telling systemd that the node's slices are there: units that come after this one start then, slurmd's among them."""

import logging
import os
import socket

log = logging.getLogger(__name__)


def tell_ready() -> None:
    """Once. Without systemd nobody is told. Source: sd_notify(3)."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            notify.sendto(b"READY=1", address)
    except OSError as error:
        log.warning("ready.not_told", extra={"error": str(error)})
