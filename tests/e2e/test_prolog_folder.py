"""The hooks in folders, as `vgpu render chain` prints it, under a real slurmd; the agent is a socket that says yes."""

import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.slurm import chain, render
from slurm_plugin.slurm.site import HookPaths
from tests.e2e.bare_slurm import NODES, bare_slurm, wait
from tests.unit.slurm.sites import SIDE

pytestmark = pytest.mark.slurm

CLIENT = Path(__file__).parents[2] / "slurm_plugin/hooks/client"
PASS = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


class Agent:
    """Answers each call with yes and keeps what was asked."""

    def __init__(self, path: Path) -> None:
        self.asked: list[str] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        path.with_name(f"{path.name}.root").symlink_to(path.name)  # where root's hooks call
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def verbs(self, job: str) -> list[str]:
        """What was asked for this job, `?` for another; newer Slurm tells its start time too."""
        asked = [line.split() for line in self.asked]
        return [words[0] if words[1] == f"job={job}" else "?" for words in asked]

    def _serve(self) -> None:
        while True:
            caller, _ = self.listener.accept()
            with caller:
                self.asked.append(caller.recv(4096).decode())
                if self.asked[-1] == "":
                    return
                caller.sendall(b"exit 0\n")

    def close(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        self.thread.join()
        self.listener.close()


def folders(folder: Path) -> str:
    """Do what the rendered text says, with links of names that tell nothing beside it; the lines for slurm.conf."""
    programs = folder / "programs"
    subprocess.run(["make", "-s", "-C", str(CLIENT)], check=True)
    shutil.copytree(CLIENT / "build", programs, symlinks=True)
    (programs / "hook.conf").write_text(f"socket {folder}/agent.sock\n")
    side = replace(SIDE, paths=HookPaths(programs=str(programs), slurm_etc=str(folder)))
    lines = chain.prologs(side).splitlines()
    for name in ("prolog.d", "epilog.d"):
        (folder / name).mkdir()
        (folder / name / "95-misnamed").symlink_to(programs / "vgpu-hook")
    for line in lines:
        if line.startswith("ln -s "):
            subprocess.run(line.split(), check=True)
    wanted = [line for line in lines if line.startswith(("Prolog=", "Epilog="))]
    wanted += [line for line in render.slurm_conf(side).splitlines() if line.startswith("PrologFlags=")]
    return "".join(f"{line}\n" for line in wanted)


def test_the_rendered_folders_run_the_hooks_and_drain_nothing() -> None:
    with bare_slurm({"job_submit.lua": PASS, "cli_filter.lua": PASS}, folders) as slurm:
        path = slurm.folder / "agent.sock"
        agent = Agent(path)
        try:
            job = slurm.run("sbatch", "--parsable", "-N2", "--output=/dev/null", "--wrap=true").stdout.strip()
            wait(lambda: slurm.job(job)["JobState"] == "COMPLETED", "the job's end")
            wait(lambda: agent.verbs(job).count("epilog") == len(NODES), "both epilogs")
            assert sorted(agent.verbs(job)) == ["epilog"] * 2 + ["prolog"] * 2
            states = slurm.run("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T").stdout.split("\n")
            assert not [state for state in states if "drain" in state or "down" in state]
        finally:
            agent.close(path)
