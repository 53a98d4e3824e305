"""The README's own commands start a lab and two sites, and a job for a slice goes from one to the other and back."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.federation.daemons import passable
from tests.unit.docs.blocks import ROOT, commands_to_run

pytestmark = [pytest.mark.slurm, pytest.mark.once]
PATIENCE_S = 180
END = "kill %1 %2; wait; vgpu lab down; cat {folder}/t/*.log >&2"


def test_a_new_user_tries_two_sites_on_one_machine() -> None:
    with passable() as folder:
        tried(folder)


def tried(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    elsewhere = {
        "/run/fed-try": f"{tmp_path}/t",
        "/run/vgpu-lab": f"{tmp_path}/labs",
        "127.0.0.1:6830": f"127.0.0.1:{port}",
    }
    (tmp_path / "configs/try").mkdir(parents=True)
    (tmp_path / "labs").mkdir(mode=0o755)
    for one in (ROOT / "configs/try").iterdir():
        (tmp_path / "configs/try" / one.name).write_text(moved(one.read_text(), elsewhere))
    lines = [moved(command, elsewhere) for command in commands_to_run("fed")]
    assert "fed submit --gres=vgpu:20gb --stage-in data.txt --stage-out 'out/*' job.sh && fed wait" in lines
    trap = f"trap '{END.format(folder=tmp_path)}' EXIT"
    done = subprocess.run(
        ["timeout", "--foreground", str(PATIENCE_S), "bash", "-em", "-c", "\n".join([trap, *lines])],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "VGPU_LAB_DIR": f"{tmp_path}/labs",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/words").read_text() == "3 data.txt\n"
    assert (tmp_path / "out/slice").read_text().startswith("MIG-")
    assert "hpc/gpu: chosen" in done.stdout
    assert done.stdout.count("3 data.txt") == 2  # of its logs, and of the file
    assert not (tmp_path / "labs/hpc").exists()


def moved(text: str, elsewhere: dict[str, str]) -> str:
    for old, new in elsewhere.items():
        text = text.replace(old, new)
    return text
