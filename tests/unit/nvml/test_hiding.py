"""Each way to keep a device open that /proc/PID/fd does not show, with real processes of another user."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.nvml import hiding as hiding_module
from slurm_plugin.nvml.hiding import RENAMED, RING, SOCKET, TOO_MANY, Suspicion, blind_to, hiding
from slurm_plugin.nvml.holders import open_in
from slurm_plugin.nvml.processes import users
from tests.unit.nvml import hiders
from tests.unit.nvml.hiders import USER, hider

WAYS = {
    "queue": (hiders.QUEUE, SOCKET),
    "queue-in-a-queue": (hiders.QUEUE_IN_A_QUEUE, SOCKET),
    "behind-a-listener": (hiders.BEHIND_A_LISTENER, SOCKET),
    "sending": (hiders.SENDING, SOCKET),
    "own-table": (hiders.OWN_TABLE, RENAMED),
    "without-first-thread": (hiders.WITHOUT_FIRST_THREAD, RENAMED),
    "ring": (hiders.IN_A_RING, RING),
}


@pytest.fixture
def device() -> Iterator[Path]:
    """Where another user can get at it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    path = folder / "nvidia-cap7"
    path.touch(mode=0o444)
    yield path
    shutil.rmtree(folder)


def of(path: Path, *uids: int) -> dict[str, Suspicion]:
    return {"slice": Suspicion(devices=(path,), users=frozenset(uids))}


@pytest.mark.parametrize(("code", "how"), WAYS.values(), ids=WAYS)
def test_who_had_it_is_found_hiding_it(device: Path, code: str, how: str) -> None:
    with hider(code, device) as process:
        assert open_in({"slice": (device,)}) == {}
        assert hiding(of(device, 1234, USER)) == {"slice": {process.pid: how}}
        assert hiding(of(device, USER + 1)) == {}
    assert hiding(of(device, USER)) == {}


def test_what_is_open_under_another_name_in_a_namespace_of_his_own_is_the_same_file(device: Path) -> None:
    other = device.with_name("x")
    other.touch()
    hide = f"mount --bind {device} {other} && exec 3< {other} && echo hidden && read wait"
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, user=USER, group=USER, extra_groups=[], cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hidden\n"
        assert open_in({"slice": (device,)}) == {}
        assert hiding(of(device, USER)) == {"slice": {process.pid: RENAMED}}
        process.communicate(b"\n")


def test_in_a_user_namespace_of_his_he_is_known_by_whatever_id(device: Path) -> None:
    with hider(hiders.QUEUE + hiders.NAMESPACE, device) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        Path(f"/proc/{process.pid}/uid_map").write_text(f"0 {USER} 1\n5 300005 1\n")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hidden\n"
        assert users(process.pid) == {300_005, USER}
        assert hiding(of(device, USER)) == {"slice": {process.pid: SOCKET}}


def test_what_was_taken_out_of_the_queue_and_closed_hides_nothing(device: Path) -> None:
    taken = "\nos.close(socket.recv_fds(kept, 1, 1)[1][0])\n"
    with hider(hiders.QUEUE + taken, device):
        assert hiding(of(device, USER)) == {}


def test_root_and_users_who_never_had_it_keep_it_from_nobody(device: Path) -> None:
    with hider(hiders.QUEUE, device, user=0), hider(hiders.QUEUE, device, user=USER + 1):
        assert hiding(of(device, 0, USER)) == {}


def test_each_slice_has_its_own_suspects(device: Path) -> None:
    with hider(hiders.QUEUE, device) as one, hider(hiders.QUEUE, device, user=USER + 1) as other:
        suspicions = {
            "first": Suspicion(devices=(device,), users=frozenset({USER})),
            "second": Suspicion(devices=(device,), users=frozenset({USER, USER + 1})),
            "third": Suspicion(devices=(device,), users=frozenset()),
        }
        assert {key: set(pids) for key, pids in hiding(suspicions).items()} == {
            "first": {one.pid},
            "second": {one.pid, other.pid},
        }


def test_he_can_not_hide_behind_more_than_is_looked_at(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hider("os.close(f)", device) as process:
        assert hiding(of(device, USER)) == {}
        for bound in ("MOST_DESCRIPTORS", "MOST_OF_A_USER", "MOST_THREADS"):
            with monkeypatch.context() as patch:
                patch.setattr(hiding_module, bound, 0)
                assert hiding(of(device, USER)) == {"slice": {process.pid: TOO_MANY}}


@pytest.mark.parametrize(
    ("ring", "has"),
    [
        ("", False),  # it is gone
        ("SqMask:\t0x0\nUserFiles:\t0\nUserBufs:\t0\n", False),
        ("UserFiles:\t2\n    0: <none>\n    1: <none>\nUserBufs:\t0\n", False),
        ("UserFiles:\t2\n    0: <none>\n    1: /dev/x\nUserBufs:\t0\n", True),
        ("UserFiles:\t1\nUserBufs:\t0\n", True),  # it was at work
        ("pos:\t0\n", True),
    ],
)
def test_what_a_ring_tells_of_its_files(ring: str, has: bool) -> None:
    assert hiding_module._has_files(ring) is has


@pytest.mark.parametrize(
    ("call", "waits_in", "passing"),
    [
        ("46 0x3 0x7f00", "sock_alloc_send_pskb", True),
        ("46 0x3 0x7f00", "handle_userfault", True),
        ("46 0x3 0x7f00", "0", True),
        ("46 0x3 0x7f00", "wait_woken", False),  # for the network
        ("47 0x3 0x7f00", "unix_stream_read_generic", False),  # for a message that has yet to come
        ("47 0x3 0x7f00", "handle_userfault", True),
        ("-1 0x0 0x0", "unix_wait_for_peer", True),  # a worker of an io_uring
        ("0 0x3 0x7f00", "handle_userfault", False),
        ("running", "0", False),
        ("", "", False),  # it is gone
    ],
)
def test_a_thread_that_has_a_message_in_hand_is_told_by_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, waits_in: str, passing: bool
) -> None:
    monkeypatch.setattr(hiding_module, "_SENDS", {"46"})
    monkeypatch.setattr(hiding_module, "_RECEIVES", {"47"})
    (tmp_path / "syscall").write_text(f"{call}\n")
    (tmp_path / "wchan").write_text(waits_in)
    assert hiding_module._is_passing(str(tmp_path)) is passing


@pytest.mark.parametrize(
    ("told", "blind"),
    [
        ("pos:\t0\nino:\t7\nscm_fds: 0\n", ""),
        ("pos:\t0\nscm_fds: 0\n", "open under another name (Linux older than 5.14)"),
        ("pos:\t0\n", "in a socket's queue, or open under another name (Linux older than 5.9)"),
    ],
)
def test_a_kernel_that_does_not_tell_is_known(monkeypatch: pytest.MonkeyPatch, told: str, blind: str) -> None:
    assert blind_to() == ""
    monkeypatch.setattr(hiding_module, "read", lambda _: told)
    assert blind_to() == (f"descriptors {blind}" if blind else "")
