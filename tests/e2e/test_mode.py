"""An A100 that lost its MIG mode, in a whole pool: left so until pool.yaml has it reset, and then brought back."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.lab import commands, simgpu
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.contract.nvml import rig
from tests.e2e.live import Live, name_of_this_run

pytestmark = pytest.mark.slurm

LEAVE_MIG = "pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 0)"


@pytest.fixture
def one() -> Iterator[Live]:
    """One node with one A100."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "mode")
    try:
        yield Live(commands.up(LabSpec(name=name, nodes=1, gpus=1, products=("a100-40gb",)), base))
    finally:
        commands.down(name, base)


def findings(live: Live) -> dict[str, dict[str, Any]]:
    told: dict[str, Any] = json.loads(live.vgpu("doctor", "--json").out or "{}")
    return {one["code"]: one for one in told.get("findings", ())}


def test_a_gpu_is_reset_where_the_pool_allows_it_and_not_before(one: Live) -> None:
    (node,), had = one.lab.nodes, sorted((s.profile, s.start) for s in one.slices().values())
    state = one.lab.sim_state(node)
    commands.stop(one.lab.name, f"agent:{node}", one.base)
    rig.client(state, LEAVE_MIG)  # by hand, with instances there: in force after a reset
    simgpu.reset(state, 0)
    assert simgpu.snapshot(state).mig == ((False, False),)
    commands.start(one.lab.name, f"agent:{node}", one.base)
    one.until(lambda: "mig-off" in findings(one), "doctor tells")
    told = findings(one)["mig-off"]
    assert "planning.reset_gpus does not allow it" in told["what"]
    assert "reset_gpus: true" in told["paste"]
    assert simgpu.snapshot(state).mig == ((False, False),)
    assert one.apply(one.policy() + "planning: {reset_gpus: true}\n").code == 0
    one.until(lambda: sorted((s.profile, s.start) for s in one.slices().values()) == had, "its layout is back")
    one.until(lambda: "mig-off" not in findings(one), "all is well")
    job = one.submit("alice", f"--gres=vgpu:{had[0][0]}")
    one.wait_sees("alice", job)
