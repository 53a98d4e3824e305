"""The commands of README and docs, run as they are written, in one shell."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.unit.docs.blocks import ROOT, commands_to_run

LIMIT_S = 90.0
LAST = "vgpu lab down"


@pytest.mark.slurm
def test_the_lab_by_hand_and_the_daily_commands_do_what_the_documents_say() -> None:
    """Everything up to `vgpu lab down`, with the commands of docs/operations.md run on the same lab before it."""
    by_hand = commands_to_run("lab")
    assert by_hand[-1] == LAST
    lines = [*by_hand[:-1], *commands_to_run("pool"), LAST]
    with tempfile.TemporaryDirectory(prefix="vgpu-doc-", dir="/run") as folder:
        Path(folder).chmod(0o755)
        env = {
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.defpath}:/usr/sbin:/sbin",
            "HOME": "/root",
            "VGPU_LAB_DIR": folder,
        }
        script = f"set -euo pipefail\ncd {shlex.quote(folder)}\ntrap '{LAST}' EXIT\n" + "\n".join(lines)
        ended = subprocess.run(
            ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        left = [path.name for path in Path(folder).iterdir() if path.is_dir()]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Submitted batch job" in ended.stdout
    assert "nothing is wrong" in ended.stdout
    assert left == []
