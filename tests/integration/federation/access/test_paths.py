"""Nothing that a path says leads out of its folder, and nothing but plain files is ever opened."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation.access.acting import acting_as
from federation.access.paths import MAX_DEPTH, MAX_NAME, MAX_PATH, Folder, parts_of
from federation.errors import Refused
from tests.integration.federation.access.person import GID, UID, open_way, person

SECRET = b"secret"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def folder(home: Path) -> Iterator[Folder]:
    with Folder(home) as opened:
        yield opened


def read(folder: Folder, path: bytes) -> bytes:
    handle = folder.open_to_read(path)
    with os.fdopen(handle, "rb") as file:
        return file.read()


def write(folder: Folder, path: bytes, data: bytes) -> None:
    with os.fdopen(folder.open_to_write(path), "wb") as file:
        file.write(data)


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"/", b"/etc/passwd", b"..", b"../secret", b"a/../../secret", b"a/..", b"./a", b"a/.", b"a//b", b"a/"),
        *(b"a\0b", b"x" * (MAX_NAME + 1), b"/".join([b"a"] * (MAX_DEPTH + 1)), b"a" * (MAX_PATH + 1)),
    ],
)
def test_paths_that_are_none(folder: Folder, path: bytes) -> None:
    for work in (folder.open_to_read, folder.open_to_write, folder.remove, lambda p: folder.move(p, b"x")):
        with pytest.raises(Refused):
            work(path)


@pytest.mark.parametrize(
    "path",
    [b"a", b"a b/c'd\"/\n", b"\xff\xfe", "ü/漢".encode(), b"-rf", b"*", b"...", b"..a", b"$(id)", b"a|b", b"~"],
)
def test_hostile_names_are_names(folder: Folder, home: Path, path: bytes) -> None:
    write(folder, path, b"x")
    assert read(folder, path) == b"x"
    assert Path(os.fsdecode(os.fsencode(home) + b"/" + path)).read_bytes() == b"x"
    folder.move(path, b"moved/" + path)
    assert read(folder, b"moved/" + path) == b"x"
    folder.remove(b"moved/" + path)
    with pytest.raises(FileNotFoundError):
        read(folder, path)


def test_links_lead_nowhere(folder: Folder, home: Path) -> None:
    (home / "out").symlink_to(home.parent)
    (home / "file").symlink_to(home.parent / "secret")
    (home / "in").mkdir()
    (home / "in" / "data").write_bytes(b"mine")
    (home / "inner").symlink_to("in")
    (home / "magic").symlink_to("/proc/self/root")
    for path in (b"out/secret", b"file", b"inner/data", b"magic/etc/passwd"):
        with pytest.raises(Refused, match="link"):
            folder.open_to_read(path)
        with pytest.raises(Refused, match="link"):
            folder.open_to_write(path)
    with pytest.raises(Refused, match="link"):
        folder.move(b"in/data", b"out/secret")
    with pytest.raises(Refused, match="link"):
        folder.remove(b"out/secret")
    assert (home.parent / "secret").read_bytes() == SECRET


def test_a_file_with_two_names(folder: Folder, home: Path) -> None:
    (home / "mine").hardlink_to(home.parent / "secret")
    for work in (folder.open_to_read, folder.open_to_write):
        with pytest.raises(Refused, match="has 2 names"):
            work(b"mine")
    assert (home.parent / "secret").read_bytes() == SECRET


def test_what_is_no_file_is_not_even_opened(folder: Folder, home: Path) -> None:
    os.mkfifo(home / "fifo")
    os.mknod(home / "null", 0o666 | 0o020000, os.makedev(1, 3))
    (home / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "sock"))
        for name in (b"fifo", b"null", b"dir", b"sock"):
            for work in (folder.open_to_read, folder.open_to_write):  # a FIFO would wait for ever
                with pytest.raises(Refused, match="is no regular file"):
                    work(name)


def test_writing_keeps_what_is_there_for_who_resumes(folder: Folder) -> None:
    write(folder, b"a/b/part", b"12345")
    handle = folder.open_to_write(b"a/b/part")
    os.lseek(handle, 0, os.SEEK_END)
    os.write(handle, b"678")
    os.close(handle)
    assert read(folder, b"a/b/part") == b"12345678"


def test_a_folder_that_was_renamed_is_still_the_one(folder: Folder, home: Path) -> None:
    home.rename(home.with_name("moved"))
    home.symlink_to("/etc")
    write(folder, b"passwd", b"x")
    assert (home.with_name("moved") / "passwd").read_bytes() == b"x"


_SWAP = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:
    os.rename("d", "e")
    os.symlink("..", "d")
    os.unlink("d")
    os.rename("e", "d")
"""


def test_whoever_swaps_folders_for_links_meanwhile_gets_nothing(folder: Folder, home: Path) -> None:
    """A user's process works against the daemon all the time: what is read is his file or nothing."""
    (home / "d").mkdir()
    (home / "d" / "secret").write_bytes(b"mine")
    seen: dict[object, int] = {}
    with subprocess.Popen([sys.executable, "-c", _SWAP, str(home)], stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout
        attacker.stdout.readline()
        for nth in range(500_000):
            if nth > 5_000 and {b"mine", Refused} <= set(seen):
                break
            try:
                what: object = read(folder, b"d/secret")
            except (Refused, FileNotFoundError) as error:
                what = type(error)
            seen[what] = seen.get(what, 0) + 1
        attacker.kill()
    assert set(seen) <= {b"mine", Refused, FileNotFoundError}
    assert {b"mine", Refused} <= set(seen)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    path=st.lists(st.sampled_from([b"..", b".", b"", b"a", b"link", b"up", b"\xff", b"a b", b"x" * 255]), max_size=6)
    .map(b"/".join)
    .filter(bool)
    | st.binary(max_size=40)
)
def test_no_path_at_all_escapes(tmp_path: Path, path: bytes) -> None:
    job = tmp_path / "job"
    if not job.exists():
        (tmp_path / "secret").write_bytes(SECRET)
        (job / "a").mkdir(parents=True)
        (job / "link").symlink_to("/etc")
        (job / "up").symlink_to("..")
    before = sorted(one.name for one in tmp_path.iterdir())
    with Folder(job) as folder:
        try:
            write(folder, path, b"x")
        except (Refused, OSError):
            return
        assert b".." not in parts_of(path)
        assert read(folder, path) == b"x"
        assert os.path.realpath(os.fsencode(job) + b"/" + path).startswith(os.fsencode(job) + b"/")
        folder.remove(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == before


def test_files_are_opened_as_their_user(home: Path) -> None:
    ann, other = person(), person("bob", UID + 1)
    home.chmod(0o755)
    os.chown(home, UID, GID)
    (home / "roots").write_bytes(SECRET)
    (home / "roots").chmod(0o600)
    with open_way(home):
        with acting_as(ann), Folder(home) as folder:
            write(folder, b"out/mine", b"x")
            assert read(folder, b"out/mine") == b"x"
            with pytest.raises(PermissionError):
                folder.open_to_read(b"roots")
        made = (home / "out" / "mine").stat()
        assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (UID, GID, 0o600)
        with acting_as(other), Folder(home) as folder:
            with pytest.raises(PermissionError):
                folder.open_to_read(b"out/mine")
            with pytest.raises(PermissionError):
                folder.open_to_write(b"new")
    assert (home / "roots").read_bytes() == SECRET  # root again
