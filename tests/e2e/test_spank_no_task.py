"""What a gateway has as its task prolog and its su: programs that start nothing of a user's."""

import shutil
import subprocess

import pytest

from tests.e2e.bare_slurm import NOBODY, wait
from tests.e2e.virtual_node import NODE, VirtualNode, virtual_node
from tests.integration.spank.daemon import SPANK

pytestmark = pytest.mark.slurm


def test_no_step_runs_when_the_plugins_line_is_gone() -> None:
    subprocess.run(["flock", str(SPANK), "make", "-s", "-C", str(SPANK)], check=True)
    with virtual_node() as node:
        conf = node.etc / "slurm.conf"
        own = f"TaskProlog={SPANK}/build/vgpu-no-task"
        conf.write_text(conf.read_text().replace(f"TaskProlog={node.slurm.folder}/taskprolog", own))
        assert own in conf.read_text()
        node.stop()
        node.serve()
        job = node.submit("")
        line = node.daemon.accept()
        line.welcome()
        (node.etc / "plugstack.conf").write_text("")
        prolog = node.users / "own-prolog"
        prolog.write_text(f"#!/bin/sh\ntouch {node.users}/ran-prolog\n")
        prolog.chmod(0o755)
        step = ("srun", f"--jobid={job}", "--overlap", "--mpi=none", f"--task-prolog={prolog}")
        ran = node.slurm.run(*step, "touch", f"{node.users}/ran-step", user=NOBODY)
        assert "Exited with exit code 1" in ran.stderr
        late = node.submit("", "--no-requeue")
        node.wait_job(late, "FAILED")
        line.end(0)
        node.wait_job(job, "COMPLETED")
        wait(lambda: node.state() == "idle", f"an idle {NODE}")
        assert node.ran() == set()


def test_a_job_that_wants_a_login_shells_variables_is_no_failure_of_the_node() -> None:
    """With this word of SchedulerParameters slurmctld drains a node whose su fails."""
    subprocess.run(["flock", str(SPANK), "make", "-s", "-C", str(SPANK)], check=True)
    with virtual_node() as node:
        node.stop()
        conf = node.etc / "slurm.conf"
        conf.write_text(conf.read_text() + "SchedulerParameters=requeue_setup_env_fail\n")
        node.serve(su=_beside(node))
        for option in ("--get-user-env", "--export=NONE"):
            job = node.submit("", option)
            line = node.daemon.accept()
            line.welcome()
            line.end(0)
            node.wait_job(job, "COMPLETED")
            assert (node.slurm.folder / f"told-{job}").read_text() == "ok\n"
        assert node.ran() == set()


def _beside(node: VirtualNode) -> str:
    program = node.plugin.with_name("vgpu-no-su")
    shutil.copy(SPANK / "build/vgpu-no-su", program)
    return str(program)
