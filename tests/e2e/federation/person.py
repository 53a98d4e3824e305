"""A user of a host who types `fed` commands: the real command line, loaded once for all of his commands."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from slurm_plugin.lab.people import as_person
from tests.e2e.live import READS

_SHELL = """
import json, os, sys
from federation.cli.main import main
for line in sys.stdin:
    folder, socket, words, out, err = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, name in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.environ["FED_SOCKET"] = socket
        sys.argv = ["fed", *words]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
OUT, ERR = ".out", ".err"


class Person:
    """A context manager. One command at a time; `home` is his own."""

    def __init__(self, name: str, home: Path) -> None:
        self.home = home
        setpriv, *person = as_person(name, (sys.executable, "-c", _SHELL))
        self._shell = subprocess.Popen(
            [setpriv, *READS, *person], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.wait(60)
        self._shell.stdout.close()

    def fed(self, socket: Path, *words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[bytes]":
        out, err = self.home / OUT, self.home / ERR
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        with self._lock:
            self._shell.stdin.write(json.dumps([str(cwd or self.home), str(socket), words, str(out), str(err)]) + "\n")
            self._shell.stdin.flush()
            code = int(self._shell.stdout.readline())
            return subprocess.CompletedProcess(words, code, out.read_bytes(), err.read_bytes())
