"""What a link makes of channels that break at the worst moment."""

from pathlib import Path
from typing import cast

import paramiko
import pytest

from federation.errors import OutcomeUnknown, Unavailable
from federation.executors import ssh_link
from federation.executors.ssh_link import OPENS, Login, SshLink


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


class Busy(Gone):
    """A transport whose other side has too many channels for a while."""

    def __init__(self, no: int) -> None:
        self.no = no

    def open_session(self, timeout: float) -> Gone:
        self.no -= 1
        if self.no >= 0:
            raise paramiko.ChannelException(2, "Connect failed")
        return super().open_session(timeout)


@pytest.mark.parametrize(("no", "error"), [(OPENS - 1, OutcomeUnknown), (OPENS, Unavailable)])
def test_a_login_node_that_has_too_many_channels_now_is_asked_for_one_again(
    monkeypatch: pytest.MonkeyPatch, no: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(ssh_link, "AGAIN_S", 0.0)
    link = SshLink(Login(host="far", user="alice", known_hosts=Path("/none")))
    with pytest.raises(error):
        link._run(cast(paramiko.Transport, Busy(no)), "true", 1.0)
