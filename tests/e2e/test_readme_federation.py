"""What the documents say of two sites on one machine, typed as it stands: in README.md and in docs/overflow_try.md."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.federation.daemons import passable
from tests.unit.docs.blocks import ROOT, commands_to_run

pytestmark = [pytest.mark.slurm, pytest.mark.once]
PATIENCE_S = 180
END = "set +e; kill %1 %2; wait; vgpu lab down --name hpc; vgpu lab down --name cloud; cat {folder}/t/*.log >&2"


def test_a_new_user_tries_two_sites_on_one_machine() -> None:
    with passable() as folder:
        lines = placed("fed", folder)
        assert "fed submit --gres=vgpu:20gb --stage-in data.txt --stage-out 'out/*' job.sh && fed wait" in lines
        said = typed(lines, folder)
        assert (folder / "out/words").read_text() == "3 data.txt\n"
        assert (folder / "out/slice").read_text().startswith("MIG-")
        assert not (folder / "labs/hpc").exists()
    assert "hpc/gpu: chosen" in said
    assert said.count("3 data.txt") == 2  # of its logs, and of the file


def test_an_admin_tries_jobs_that_flow_over() -> None:
    with passable() as folder:
        said = typed(placed("burst", folder), folder)
        assert not (folder / "labs").exists()
        assert not (folder / "t").exists()
    assert "Slurm is as the virtual nodes need it" in said
    assert re.search(r"^in cloud with MIG-\S+\n3 data.txt\n", said, re.MULTILINE), said
    assert re.search(r"^3$", said, re.MULTILINE), said  # its exit code
    assert re.search(r"^ +\d+ +cloud +wrap +alice +R .* cloud-1$", said, re.MULTILINE), said
    assert re.search(r"^job \d+ of alice runs in cloud/gpu$", said, re.MULTILINE), said


def placed(place: str, folder: Path) -> list[str]:
    """The commands of a place in the documents, of which nothing is outside this folder, and the files they need."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    elsewhere = {
        "/run/fed-try": f"{folder}/t",
        "/run/vgpu-lab": f"{folder}/labs",
        "127.0.0.1:6830": f"127.0.0.1:{port}",
    }
    (folder / "configs/try").mkdir(parents=True)
    (folder / "labs").mkdir(mode=0o755)
    for one in (ROOT / "configs/try").iterdir():
        (folder / "configs/try" / one.name).write_text(moved(one.read_text(), elsewhere))
    return [moved(command, elsewhere) for command in commands_to_run(place)]


def typed(lines: list[str], folder: Path) -> str:
    """What they print, in one shell."""
    trap = f"trap '{END.format(folder=folder)}' EXIT"
    done = subprocess.run(
        ["timeout", "--foreground", str(PATIENCE_S), "bash", "-em", "-c", "\n".join([trap, *lines])],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "VGPU_LAB_DIR": f"{folder}/labs",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def moved(text: str, elsewhere: dict[str, str]) -> str:
    for old, new in elsewhere.items():
        text = text.replace(old, new)
    return text
