"""Asking a lab's supervisor: a line of JSON there, a line of JSON back."""

import json
import socket

from slurm_plugin.errors import LabError
from slurm_plugin.lab.keeper import KeeperStatus
from slurm_plugin.lab.site import Lab

ANSWER_LIMIT_S = 30.0
MAX_ANSWER = 1 << 20  # bytes


def ask(lab: Lab, verb: str, **facts: object) -> dict[str, object]:
    """Raises LabError when the supervisor is away, refuses, or does not answer in ANSWER_LIMIT_S."""
    line = json.dumps({"do": verb, **facts}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(ANSWER_LIMIT_S)
            link.connect(str(lab.control_socket))
            link.sendall(line)
            with link.makefile("rb") as answer:
                reply = json.loads(answer.readline(MAX_ANSWER))
    except (OSError, ValueError) as error:
        hint = f"vgpu lab down --name {lab.name}, then up again: its daemons may still run"
        raise LabError(f"the supervisor of lab {lab.name} does not answer: {error}", hint=hint) from error
    if "error" in reply:
        raise LabError(str(reply["error"]))
    return dict(reply)


def answers(lab: Lab) -> bool:
    try:
        ask(lab, "status")
    except LabError:
        return False
    return True


def status(lab: Lab) -> tuple[int, tuple[KeeperStatus, ...]]:
    """The supervisor's pid, and how each daemon does. Raises LabError."""
    reply = ask(lab, "status")
    daemons = reply["daemons"]
    if not isinstance(daemons, list):
        raise LabError("the supervisor's answer makes no sense")
    return int(str(reply["pid"])), tuple(KeeperStatus(**daemon) for daemon in daemons)
