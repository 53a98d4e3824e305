"""The README's own commands start two sites, and a job goes from one to the other and back."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.integration.federation.daemons import passable
from tests.unit.docs.blocks import ROOT, commands_to_run

PATIENCE_S = 90
END = "kill %1 %2; wait; cat {folder}/t/*.log >&2"


def test_a_new_user_tries_two_sites_on_one_machine() -> None:
    with passable() as folder:
        tried(folder)


def tried(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "configs/try").mkdir(parents=True)
    for one in (ROOT / "configs/try").iterdir():
        text = one.read_text().replace("/run/fed-try", f"{tmp_path}/t").replace("127.0.0.1:6830", f"127.0.0.1:{port}")
        (tmp_path / "configs/try" / one.name).write_text(text)
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    lines = [command.replace("/run/fed-try", f"{tmp_path}/t") for command in commands_to_run("fed")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [
            "timeout",
            "--foreground",
            str(PATIENCE_S),
            "bash",
            "-em",
            "-c",
            "\n".join([f"trap '{END.format(folder=tmp_path)}' EXIT", *lines]),
        ],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = len((ROOT / "README.md").read_text().split())
    assert (tmp_path / "out/words").read_text() == f"{words} README.md\n"
    assert done.stdout.count(f"{words} README.md") == 2  # of its logs, and of the file
