"""Processes of a user who hides a descriptor: what each does, in Python, with the descriptor `f` it starts with."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = 61_234  # nobody's, and no process but the tests' has it

START = """
import ctypes, os, socket, struct, sys, threading
f, user = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
os.setgroups([]); os.setgid(user); os.setuid(user)
libc.prctl(4, 1)  # or it could not look at its own threads
"""
END = """
print("hidden", flush=True)
sys.stdin.readline()
"""
QUEUE = """
kept, other = socket.socketpair()
socket.send_fds(other, [b"x"], [f])
os.close(f); other.close()
"""
QUEUE_IN_A_QUEUE = """
inner, other = socket.socketpair()
socket.send_fds(other, [b"x"], [f])
kept, outer = socket.socketpair()
socket.send_fds(outer, [b"x"], [inner.fileno()])
os.close(f); other.close(); outer.close(); inner.close()
"""
BEHIND_A_LISTENER = """
kept = socket.socket(socket.AF_UNIX)
kept.bind(""); kept.listen()
other = socket.socket(socket.AF_UNIX)
other.connect(kept.getsockname())
socket.send_fds(other, [b"x"], [f])
os.close(f); other.close()
"""
SENDING = """
kept, full = socket.socketpair()
full.setblocking(False)
try:
    while True: full.send(bytes(4096))
except BlockingIOError: full.setblocking(True)
sender = threading.Thread(target=socket.send_fds, args=(full, [b"x"], [f]), daemon=True)
sender.start()
call = {"x86_64": "46 ", "aarch64": "211 "}[os.uname().machine]
while not open(f"/proc/self/task/{sender.native_id}/syscall").read().startswith(call): pass
os.close(f)
"""
OWN_TABLE = """
kept = threading.Event()
def own():
    assert libc.unshare(0x400) == 0
    kept.set()
    threading.Event().wait()
threading.Thread(target=own, daemon=True).start()
kept.wait()
os.close(f)
"""
WITHOUT_FIRST_THREAD = """
def stay():
    with open("/proc/self/stat") as stat:
        while stat.seek(0) or stat.read().rpartition(")")[2].split()[0] != "Z": pass
    print("hidden", flush=True)
    sys.stdin.readline()
    os._exit(0)
threading.Thread(target=stay).start()
libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
IN_A_RING = """
ring = libc.syscall(425, 1, ctypes.create_string_buffer(120))
assert ring > 0
assert libc.syscall(427, ring, 2, ctypes.byref(ctypes.c_int(f)), 1) == 0
os.close(f)
"""
# In a user namespace whose map root writes, as newuidmap does: then as the one of these users who has no name outside.
NAMESPACE = """
assert libc.unshare(0x10000000) == 0
print("hidden", flush=True)
sys.stdin.readline()
os.setuid(5)
"""


@contextmanager
def hider(code: str, device: Path, user: int = USER) -> Iterator["subprocess.Popen[str]"]:
    """A process that has done this, until it is sent a line."""
    opened = os.open(device, os.O_RDONLY)
    try:
        argv = [sys.executable, "-c", START + code + END, str(opened), str(user)]
        process = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, pass_fds=[opened], cwd="/")
    finally:
        os.close(opened)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hidden\n"
        try:
            yield process
        finally:
            process.kill()
