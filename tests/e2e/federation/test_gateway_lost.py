"""A gateway is lost while a slice is free here: the job, which may run here or elsewhere, runs once."""

from collections.abc import Iterator

import pytest

from federation.lab.sites import NODE
from slurm_plugin.lab import commands, processes
from tests.e2e.federation.bursting import USER, Bursting, bursting

pytestmark = pytest.mark.slurm

LIMIT_S = 120.0
SLICE = "--gres=vgpu:10gb"
SLICES = 4  # that serve it, of the GPU here


@pytest.fixture(scope="module")
def site() -> Iterator[Bursting]:
    with bursting(pool=True) as made:
        yield made


def submit(site: Bursting, script: str, *options: str) -> str:
    return site.here.submit(USER, "--chdir", str(site.here.home(USER)), SLICE, *options, script=script)


def lose(site: Bursting) -> None:
    """As a host that goes down, and Slurm sees it."""
    lab = site.here.lab
    commands.stop(lab.name, f"slurmd:{NODE}", site.here.base)
    processes.kill(processes.jobs_of(lab.node_slurm_conf(NODE), lab.spool(NODE)))
    site.here.slurm("scontrol", "update", f"nodename={NODE}", "state=down", "reason=lost")


def bring_back(site: Bursting) -> None:
    """Its node is in service when its slurmd registers: ReturnToService=2."""
    commands.start(site.here.lab.name, f"slurmd:{NODE}", site.here.base)


@pytest.mark.parametrize(
    "daemon_too",
    [
        pytest.param(False, marks=pytest.mark.soak, id="the gateway"),
        pytest.param(True, id="the gateway and its daemon"),
    ],
)
def test_a_job_that_may_run_here_or_elsewhere_runs_once(site: Bursting, daemon_too: bool) -> None:
    here, ran = site.here, site.there.home(USER) / "ran"
    blockers = [submit(site, "exec sleep 600") for _ in range(SLICES)]
    for blocker in blockers:
        site.wait_state(blocker, "RUNNING")
    job = submit(site, f"echo $CUDA_VISIBLE_DEVICES >> {ran}; while ! [ -e {ran}.end ]; do sleep 0.2; done; echo over")
    assert here.state(job) == "PENDING"
    here.until(lambda: _widened(site, job), f"job {job} widened")
    site.wait_state(job, "RUNNING")
    assert site.field(job, "NodeList") == NODE
    here.until(ran.exists, "it has begun elsewhere", LIMIT_S)
    if daemon_too:
        site.hpc.kill()
    for blocker in blockers:
        here.run(USER, "scancel", blocker)
    lose(site)
    # Slurm starts it where there is room, which is here: its node sends it back, or it was kept from that before.
    sent_back = 2 if daemon_too else 1
    here.until(lambda: int(site.field(job, "Restarts")) >= sent_back, f"job {job} sent back", LIMIT_S)
    if daemon_too:
        assert "bind.elsewhere" in (here.lab.log / "agent-n1.out").read_text()
        site.hpc.start()
    bring_back(site)
    here.until(lambda: site.field(job, "NodeList") == NODE, f"job {job} back on {NODE}", LIMIT_S)
    here.run(USER, "touch", f"{ran}.end")
    site.wait_state(job, "COMPLETED", limit_s=LIMIT_S)
    assert len(ran.read_text().splitlines()) == 1
    assert here.output(USER, job).endswith("over\n")
    assert not here.node_state("n1").startswith(("drain", "down"))
    ran.unlink()
    ran.with_name("ran.end").unlink()


def _widened(site: Bursting, job: str) -> bool:
    """A job that was just submitted is busy for a moment."""
    update = ("scontrol", "update", f"jobid={job}", "partition=gpu,vgpu-wait,cloud")
    return site.here.run("root", *update).code == 0
