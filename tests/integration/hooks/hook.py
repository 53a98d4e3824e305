"""The client in a folder of its own, and an agent that the test plays."""

import contextlib
import select
import shutil
import socket
import subprocess
import threading
from pathlib import Path

CLIENT = Path(__file__).parents[3] / "slurm_plugin/hooks/client"
NOBODY = 65534
NAMES = ("vgpu-prolog", "vgpu-epilog", "vgpu-taskprolog", "vgpu-bind", "vgpu-guard", "90-vgpu-guard")
LINKS = ("90-vgpu-prolog", "90-vgpu-epilog", "z-vgpu-taskprolog", "90-vgpu", "vgpu-prolog-old", "myvgpu-prolog")
PATIENCE_S = 20


class Hook:
    """The client in a folder of its own, and an agent that answers what it is told to."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"  # users'
        self.roots = folder / "agent.sock.root"
        self.marks = folder / "agent.sock.plain"
        self.asked: list[str] = []
        self.binary = folder / "vgpu-hook"
        shutil.copy(built / "vgpu-hook-asan", self.binary)
        for name in (*NAMES, *LINKS):
            (folder / name).symlink_to(self.binary)
        self.conf = folder / "hook.conf"
        self.conf.write_text(f"# where the agent is\nsocket {self.socket}\n")
        self._agent: threading.Thread | None = None

    def listen(self, *answers: bytes) -> None:
        """Answer one call each, at whichever socket, then go away."""
        listeners = [self.bind(self.socket), self.bind(self.roots)]
        self.socket.chmod(0o666)
        self._agent = threading.Thread(target=self._serve, args=(listeners, answers))
        self._agent.start()

    @staticmethod
    def bind(path: Path) -> socket.socket:
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return listener

    def _serve(self, listeners: list[socket.socket], answers: tuple[bytes, ...]) -> None:
        with contextlib.ExitStack() as both:
            for listener in listeners:
                both.enter_context(listener)
            for answer in answers:
                caller, _ = select.select(listeners, [], [], PATIENCE_S)[0][0].accept()
                with caller:
                    self.asked.append(caller.recv(4096).decode())
                    caller.sendall(answer)

    def run(self, name: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = (str(self.folder / name), *argv)
        environment = {"ASAN_OPTIONS": "exitcode=99", "PATH": "/usr/bin:/bin", **env}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def open_to_all(self) -> None:
        for folder in (self.folder, *self.folder.parents[:3]):
            if folder.owner() == "root" and folder != Path("/tmp"):
                folder.chmod(0o755)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.join()
