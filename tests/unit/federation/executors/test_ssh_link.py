"""What a link makes of channels that break at the worst moment."""

from pathlib import Path
from typing import cast

import paramiko
import pytest

from federation.errors import OutcomeUnknown
from federation.executors.ssh_link import Login, SshLink


class Gone:
    """A transport and its channel: opened, and the other side is away before anything was said."""

    def open_session(self, timeout: float) -> "Gone":
        return self

    def settimeout(self, seconds: float) -> None:
        """It takes any."""

    def exec_command(self, command: str) -> None:
        raise EOFError

    def close(self) -> None:
        raise EOFError


def test_a_channel_that_can_not_even_be_closed_leaves_the_outcome_unknown() -> None:
    link = SshLink(Login(host="far", user="alice", known_hosts=Path("/none")))
    with pytest.raises(OutcomeUnknown):
        link._run(cast(paramiko.Transport, Gone()), "true", 1.0)
