import socket
from pathlib import Path

import pytest

from slurm_plugin.agent.ready import tell_ready


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"{'@' if abstract else ''}{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        tell_ready()
        assert systemd.recv(100) == b"READY=1"
        tell_ready()
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


def test_a_systemd_that_is_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
    tell_ready()
