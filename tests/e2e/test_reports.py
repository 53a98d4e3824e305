"""Reports of others that no other file of this folder answers; docs/reports.md lists them all."""

import json
import re

import pytest

from tests.e2e.live import SEE, Live

pytestmark = pytest.mark.slurm


def test_which_slice_a_job_got_is_told_in_full(live: Live) -> None:
    """What the job sees, `vgpu show job` and the hardware name the same slice, and how it is kept apart."""
    job = live.submit("alice", "--gres=vgpu:20gb:2")
    [(node, uuids)] = live.wait_sees("alice", job)
    ran = live.vgpu("show", "job", job, "--json")
    (grant,) = json.loads(ran.out)["grants"]
    there = live.slices()
    assert (grant["node"], grant["grant"]["count"]) == (node, 2)
    assert {piece["uuid"] for piece in grant["slices"]} == set(uuids)
    for piece in grant["slices"]:
        real = there[piece["uuid"]]
        assert (piece["gpu"], piece["gi"], piece["profile"]) == (real.gpu, real.gi, real.profile)
        assert (piece["start"], piece["size"]) == (real.start, real.size)
        assert piece["ci"] == real.compute[0].id
        assert piece["isolation"].startswith("mig")
    assert "isolation mig" in live.vgpu("show", "job", job).out


def test_each_task_has_its_slice_in_the_variable_that_containers_read(live: Live) -> None:
    both = 'test "$CUDA_VISIBLE_DEVICES" = "$NVIDIA_VISIBLE_DEVICES" && ' + SEE
    job = live.submit("alice", "-n2", "--gres=vgpu:1g.10gb:2", script=f"srun sh -c '{both}'; exec sleep 1000")
    (_, first), (_, second) = live.wait_sees("alice", job, 2)
    assert len(first) == len(second) == 1
    assert first != second
    assert all(uuid.startswith("MIG-") for uuid in (*first, *second))


def test_more_slices_than_tasks_are_given_and_warned_of(live: Live) -> None:
    ran = live.run("alice", "sbatch", "--gres=vgpu:1g.10gb:2", "--wrap=true")
    assert ran.code == 0
    assert re.search(r"vgpu: warning: 2 slices for one task.*--ntasks-per-node=2", ran.err)


def test_a_job_submitted_from_inside_a_job_runs_and_is_warned_of_what_it_inherits(live: Live) -> None:
    inner = f"sbatch --output=inner.out --gres=vgpu:1g.10gb --wrap='{SEE}; srun sh -c \"{SEE}\"'"
    script = f"export SLURM_STEP_GRES=vgpu:2g.20gb:1; {inner}; env -u SLURM_STEP_GRES {inner}; exec sleep 1000"
    job = live.submit("alice", "--gres=vgpu:2g.20gb", script=script.replace('"', '\\"'))
    live.until(lambda: live.output("alice", job).count("Submitted") == 2, "both are submitted")
    warnings = [line for line in live.output("alice", job).splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "submit with: env -u SLURM_STEP_GRES sbatch" in warnings[0]
