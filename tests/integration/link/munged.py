"""A real munged of the test's own: private key, private socket, ended by pid."""

import asyncio
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_plugin.link.munge import Munge

START_S = 10.0


class Late(Munge):
    """Its credentials are of another time when they arrive, as those of a host whose clock is far off."""

    async def encode(self, payload: str, *, for_uid: int) -> bytes:
        credential = await super().encode(payload, for_uid=for_uid)
        await asyncio.sleep(2.1)  # seconds are whole, and one is what they are good for
        return credential


@contextmanager
def munged() -> Iterator[Path]:
    """Yields the socket. The folder is open to all, since other users of the tests dial it too."""
    with tempfile.TemporaryDirectory(prefix="vgpu-munge-", dir="/run") as text:
        folder = Path(text)
        folder.chmod(0o755)
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = [f"--{name}={folder / name}" for name in ("pid-file", "log-file", "seed-file")]
        argv = ["munged", "--foreground", f"--key-file={key}", f"--socket={folder / 'socket'}", *files]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen([*argv, "--num-threads=2"], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while subprocess.run(["munge", "-n", "-S", folder / "socket"], capture_output=True).returncode:
                assert process.poll() is None, (folder / "out").read_text()
                assert time.monotonic() < deadline, "munged did not start"
                os.sched_yield()
            yield folder / "socket"
        finally:
            process.terminate()
            process.wait(10)
