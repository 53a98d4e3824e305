"""Who calls on the local socket, as the kernel says."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from federation.access.local import Caller, caller_of, listening
from federation.errors import ConfigError, Refused
from tests.integration.federation.access.person import open_way

_CONNECT = """
import os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
print("in", flush=True)
sys.stdin.read()
"""


def called_by(path: Path, uid: int, admins: tuple[str, ...] = ()) -> Caller:
    with listening(path) as listener, open_way(path):
        listener.settimeout(10)
        argv = [sys.executable, "-c", _CONNECT, str(path), str(uid)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            connection, _ = listener.accept()
            with connection:
                caller = asyncio.run(caller_of(connection, admins))
            assert caller.pid == client.pid
            return caller


def test_root_is_an_admin_and_others_see_what_is_theirs(tmp_path: Path) -> None:
    root = called_by(tmp_path / "a", 0)
    assert (root.uid, root.admin) == (0, True)
    assert root.may_see("anybody")
    games = called_by(tmp_path / "b", 5)  # a user that every Debian has
    assert (games.user, games.uid, games.admin) == ("games", 5, False)
    assert games.may_see("games")
    assert not games.may_see("root")
    assert not games.may_see("")
    assert called_by(tmp_path / "c", 5, admins=("games",)).admin


def test_a_user_that_the_host_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="uid 54321 is nobody on this host"):
        called_by(tmp_path / "a", 54321)


def test_one_daemon_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with listening(path), pytest.raises(ConfigError, match="a daemon listens on"):
        listening(path)
    assert path.exists()  # as a daemon that was killed leaves it
    with listening(path) as again, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert again.fileno() > 0


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    path.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="is no socket"):
        listening(path)
    assert path.read_bytes() == b"mine"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        listening(tmp_path / "shared" / "sock")
    with pytest.raises(ConfigError, match="can't listen"):
        listening(tmp_path / ("x" * 200))
    assert os.geteuid() == 0
