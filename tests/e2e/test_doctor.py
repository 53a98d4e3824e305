"""Faults planted in a running site: `vgpu doctor` finds each, says how to mend it, and finds nothing else."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_plugin.cli import examine
from slurm_plugin.cli.options import Where
from slurm_plugin.findings import Finding
from slurm_plugin.lab import commands, simgpu
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e.live import Live, name_of_this_run

pytestmark = pytest.mark.slurm

# What somebody does who has never heard of the pool: he clears GPU 1 and cuts it by hand, one instance half made.
BY_HAND = """
import sys
from pathlib import Path
import pynvml
from slurm_plugin.model import Step
from slurm_plugin.nvml import NvmlGpus

node, again = Path(sys.argv[1]), sys.argv[2] == "again"
gpus = NvmlGpus(proc_root=node / "proc", dev_root=node / "dev")
gpu = gpus.inventory()[1]
gpus.apply(Step(gpu=gpu.uuid, destroy=tuple((one.profile, one.start) for one in gpu.instances)))
if again:
    gpus.apply(Step(gpu=gpu.uuid, create=(("1g.10gb", 6),)))
    small = next(one for one in gpu.profiles if one.name == "1g.10gb")
    pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(1), small.gi_profile_id)
"""
TAKES_TOTALS = (23, 11)  # from here on a reconfigure takes a changed Gres of a node from slurm.conf


@pytest.fixture(scope="module")
def _own() -> Iterator[Live]:
    """A lab of this file's own: what is planted here may leave marks."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="doc", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "doc")
    try:
        yield Live(commands.up(LabSpec(name=name, gpus=2), base))
    finally:
        commands.down(name, base)


@pytest.fixture
def site(_own: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr(examine, "SECOND_LOOK_S", 0.5)
    yield _own
    _own.settle()


def doctor(site: Live, config: Path | None = None) -> dict[str, Finding]:
    """The findings by code, in this process."""
    where = Where(config=config or site.lab.pool_config, controller="", controller_uid=None, munge_socket=None)
    findings = examine.examine(where).findings
    assert all(finding.what and finding.why and finding.paste.strip() for finding in findings)
    return {finding.code: finding for finding in findings}


def told(site: Live, *command: str) -> set[str]:
    """The codes of what a command finds, as an admin runs it; the exit code says whether there are any."""
    ran = site.vgpu(*command, "--json")
    codes = {finding["code"] for finding in json.loads(ran.out)["findings"]}
    assert ran.code == (1 if codes else 0), ran.err
    return codes


def wait_found(site: Live, *codes: str) -> dict[str, Finding]:
    """Until doctor finds these and no others; none: until nothing is wrong."""
    found: dict[str, Finding] = {}

    def as_wanted() -> bool:
        found.clear()
        found.update(doctor(site))
        return found.keys() == set(codes)

    try:
        site.until(as_wanted, f"doctor finds {codes or 'nothing'}")
    except AssertionError as error:
        error.add_note(f"found: {[f'{finding.code}: {finding.what}' for finding in found.values()]}")
        raise
    return found


@contextmanager
def edited(path: Path, *changes: tuple[str, str]) -> Iterator[None]:
    """The file with these texts replaced, and afterwards as it was, in content and time stamp."""
    before, stat = path.read_text(), path.stat()
    text = before
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@contextmanager
def reconfigured(site: Live, *changes: tuple[str, str]) -> Iterator[None]:
    """slurm.conf with these texts replaced, and slurmctld told."""
    try:
        with edited(site.lab.etc / "common.conf", *changes):
            site.slurm("scontrol", "reconfigure")
            yield
    finally:
        site.slurm("scontrol", "reconfigure")


# Nothing where nothing is


def test_a_healthy_pool_has_no_finding_idle_or_busy(site: Live) -> None:
    assert told(site, "doctor") == told(site, "render", "--check") == set()
    site.submit("alice", "--gres=vgpu:1g.10gb", "--array=1-40%6", script="sleep 0.5")
    site.submit("bob", "--gres=vgpu:20gb")
    waiting = site.submit("bob", "--gres=vgpu:7g.80gb")
    site.until(lambda: site.reason(waiting) == "PartitionDown", "a job waits for what is not there")
    for _ in range(3):
        assert told(site, "doctor") == set()
    site.slurm("scontrol", "reconfigure")
    assert told(site, "doctor") == set()


# Slurm's configuration


def test_wrong_lines_in_slurm_conf_are_all_found_by_doctor_and_by_render_check(site: Live) -> None:
    planted = {
        "prolog-flags": ("PrologFlags=Alloc\n", ""),
        "def-mem": ("DefMemPerCPU=1000\n", ""),
        "enforce-part-limits": ("EnforcePartLimits=ANY", "EnforcePartLimits=NO"),
        "batch-start-timeout": ("BatchStartTimeout=120", "BatchStartTimeout=10"),
        "slurmd-timeout": ("SlurmdTimeout=60", "SlurmdTimeout=0"),
        "exclusive": ("Default=YES State=UP", "Default=YES State=UP OverSubscribe=EXCLUSIVE"),
        "wait-partition-up": ("State=DOWN Hidden=YES", "State=UP Hidden=NO"),
        "wait-partition-nodes": ("PartitionName=vgpu-wait Nodes=n[1-2]", "PartitionName=vgpu-wait Nodes=n1"),
        "wait-partition-tier": ("PriorityTier=0", "PriorityTier=1"),
        "conf-total": ("Gres=vgpu:1000", "Gres=vgpu:1024"),
    }
    with reconfigured(site, *planted.values()):
        expected = planted.keys() | {"wait-partition-shown"}
        if site.lab.slurm_version >= TAKES_TOTALS:
            expected |= {"gres-total"}
        assert told(site, "render", "--check") == expected
        found = doctor(site)
        assert found.keys() >= expected
        assert found["prolog-flags"].paste == "PrologFlags=Alloc"
        assert found["conf-total"].paste.endswith("vgpu:1000,vgpu_mem:16")

    def nothing() -> bool:
        """Counts that were on their way when slurmctld read its file anew still have the total they were made with."""
        found = doctor(site)
        if "gres-total" in found:
            site.slurm("scontrol", "reconfigure")
        return not found

    site.until(nothing, "doctor finds nothing")


def test_a_wait_partition_that_somebody_opened_is_closed_by_what_doctor_prints(site: Live) -> None:
    site.slurm("scontrol", "update", "partitionname=vgpu-wait", "state=up")
    found = doctor(site)
    assert found.keys() == {"wait-partition-up"}
    site.slurm(*shlex.split(found["wait-partition-up"].paste, comments=True))
    assert doctor(site) == {}


def test_a_total_that_somebody_changed_live(site: Live) -> None:
    site.slurm("scontrol", "update", "nodename=n2", "gres=vgpu:900,vgpu_mem:8")
    found = doctor(site)
    site.slurm("scontrol", "reconfigure")
    assert "gres-total" in found
    assert "node n2 has " in found["gres-total"].what


def test_a_wait_partition_that_is_missing_and_plugins_that_are_not_loaded(site: Live) -> None:
    text = (site.lab.etc / "common.conf").read_text()
    (wait,) = [line for line in text.splitlines() if line.startswith("PartitionName=vgpu-wait")]
    with reconfigured(site, (wait, ""), ("JobSubmitPlugins=lua\n", "")):
        found = doctor(site)
        assert found.keys() >= {"no-wait-partition", "job-submit-plugins", "lua-not-run"}
        assert found["no-wait-partition"].paste.startswith("PartitionName=vgpu-wait Nodes=n[1-2] State=DOWN")
    wait_found(site)


def test_an_epilog_of_the_sites_that_resets_gpus(site: Live) -> None:
    hooks = site.lab.hooks("n1")
    epilog = hooks / "site-epilog"
    epilog.write_text(f"#!/bin/sh\n# nvidia-smi -r would be wrong\nnvidia-smi --gpu-reset -i 0\n{hooks}/vgpu-epilog\n")
    with edited(site.lab.slurm_conf, (f"Epilog={hooks}/vgpu-epilog", f"Epilog={epilog}")):
        site.slurm("scontrol", "reconfigure")
        found = doctor(site)
    site.slurm("scontrol", "reconfigure")
    assert found.keys() == {"resets-gpu"}
    assert "nvidia-smi --gpu-reset -i 0" in found["resets-gpu"].what


@pytest.mark.parametrize(
    ("line", "code"),
    [("NodeName=other Name=vgpu File=/dev/nvidia[0-3]", "gres-file"), ("Name=vgpu Type=1g.10gb Count=4", "gres-type")],
)
def test_gres_conf(site: Live, line: str, code: str) -> None:
    with edited(site.lab.etc / "gres.conf", ("Name=vgpu_mem Count=16\n", f"Name=vgpu_mem Count=16\n{line}\n")):
        assert doctor(site).keys() == told(site, "render", "--check") == {code}


# Files


def test_a_client_that_does_not_know_the_gres(site: Live) -> None:
    with edited(site.lab.etc / "common.conf", ("GresTypes=vgpu,vgpu_mem", "GresTypes=gpu")):
        found = doctor(site)
    assert found.keys() == {"client-gres-types"}
    assert found["client-gres-types"].paste == "GresTypes=gpu,vgpu,vgpu_mem"


def touch(path: Path) -> None:
    """As a second or more after whatever was before: slurmctld compares whole seconds."""
    later = max(time.time(), path.stat().st_mtime) + 1
    os.utime(path, (later, later))


def test_lua_that_is_broken_and_lua_that_was_not_read(site: Live) -> None:
    module, submit = site.lab.etc / "vgpu.lua", site.lab.etc / "job_submit.lua"
    with edited(module, ("local M = {", "local M = = {")):
        touch(submit)
        assert doctor(site).keys() == {"lua-broken", "lua-differs"}
    touch(submit)
    assert doctor(site) == {}
    (site.lab.etc / "cli_filter.lua").rename(site.lab.etc / "cli_filter.away")
    try:
        assert "no-cli-filter" in doctor(site)
    finally:
        (site.lab.etc / "cli_filter.away").rename(site.lab.etc / "cli_filter.lua")


def test_a_hook_conf_that_others_can_write(site: Live) -> None:
    conf = site.lab.hooks("n1") / "hook.conf"
    conf.chmod(0o666)
    found = doctor(site)
    conf.chmod(0o644)
    assert found.keys() == {"hook-conf"}


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (lambda path: path.write_text(path.read_text()[:80]), "catalogue"),
        (lambda path: path.unlink(), "no-catalogue"),
        (lambda path: path.chmod(0o666), "catalogue-mode"),
    ],
    ids=["broken", "missing", "mode"],
)
def test_a_catalogue_that_nobody_mends(site: Live, plant: Callable[[Path], object], code: str) -> None:
    commands.stop(site.lab.name, "controller", site.base)
    plant(site.lab.catalogue)
    assert code in doctor(site)
    site.lab.catalogue.unlink(missing_ok=True)
    commands.start(site.lab.name, "controller", site.base)
    wait_found(site)


def test_an_old_copy_of_the_catalogue_on_another_host(site: Live, tmp_path: Path) -> None:
    copy, config = tmp_path / "catalogue", tmp_path / "pool.yaml"
    config.write_text(site.lab.pool_config.read_text().replace(str(site.lab.catalogue), str(copy)))
    copy.write_text(site.lab.catalogue.read_text())
    assert doctor(site, config) == {}
    copy.write_text(copy.read_text().replace("exclusive refuse", "exclusive allow"))
    assert doctor(site, config).keys() == {"catalogue-old"}


# Daemons, nodes and GPUs


@pytest.mark.parametrize(
    ("daemon", "codes"),
    [
        ("agent:n1", {"agent-away"}),
        ("controller", {"controller-away"}),
        ("munged", {"munge", "controller-away", "slurm-away"}),
    ],
)
def test_a_daemon_that_is_down(site: Live, daemon: str, codes: set[str]) -> None:
    commands.stop(site.lab.name, daemon, site.base)
    try:
        site.until(lambda: doctor(site).keys() >= codes, f"{daemon} is missed")
    finally:
        commands.start(site.lab.name, daemon, site.base)
    site.until(lambda: "slurm-away" not in doctor(site), "Slurm answers")
    site.slurm("scontrol", "reconfigure")  # a slurmd that could not register is asked to
    wait_found(site)


def test_a_drained_node_and_why(site: Live) -> None:
    for reason, code in (
        ("gres/vgpu count changed and jobs are using them", "drained-by-count"),
        ("fans are loud", "drained"),
    ):
        site.slurm("scontrol", "update", "nodename=n2", "state=drain", f"reason={reason}")
        try:
            wait_found(site, code)
        finally:
            site.slurm("scontrol", "update", "nodename=n2", "state=resume")


def test_jobs_that_will_never_start(site: Live) -> None:
    held = site.submit("alice", "--gres=vgpu:7g.80gb")
    moved = ("scontrol", "update", f"jobid={held}", "partition=gpu")
    site.until(lambda: site.run("root", *moved).code == 0, "it is moved: newer Slurm refuses that for a moment")
    site.until(lambda: site.reason(held) == "BadConstraints", "Slurm holds it")
    named = "classes: {small: {memory: 10gb}}\nnodes:"
    assert site.apply(site.policy(("nodes:", named))).code == 0
    site.until(lambda: "class small " in site.lab.catalogue.read_text(), "the class is there")
    old = site.submit("bob", "--gres=vgpu:small", "--hold")
    assert site.apply(site.policy()).code == 0
    site.until(lambda: "class small " not in site.lab.catalogue.read_text(), "the class is gone")
    found = wait_found(site, "held-job", "unknown-class")
    assert held in found["held-job"].paste
    assert old in found["unknown-class"].what


def by_hand(site: Live, how: str) -> None:
    """Cut GPU 1 of n2 anew, or only clear it, past the pool, and let the agent look."""
    env = commands.environment(site.lab.name, site.base, "n2")
    argv = [sys.executable, "-c", BY_HAND, str(site.lab.node_folder("n2")), how]
    commands.stop(site.lab.name, "agent:n2", site.base)
    subprocess.run(argv, env=env, check=True, timeout=30)
    commands.start(site.lab.name, "agent:n2", site.base)


def test_instances_that_others_made(site: Live) -> None:
    by_hand(site, "again")
    site.until(lambda: "foreign-instance" in doctor(site), "it is seen")
    found = doctor(site)["foreign-instance"]
    assert "n2 GPU 1: 1g.10gb at" in found.what
    assert "nvidia-smi mig -i 1 -gi" in found.paste
    by_hand(site, "clear")
    wait_found(site)


def test_a_gpu_that_fell_off_the_bus(site: Live) -> None:
    simgpu.lose(site.lab.sim_state("n2"), 1)
    commands.kill(site.lab.name, "agent:n2", site.base)
    site.until(lambda: "gpu-fault" in doctor(site), "it is seen")
    simgpu.clear(site.lab.sim_state("n2"))
    commands.kill(site.lab.name, "agent:n2", site.base)
    wait_found(site)


# Only looking


def everything(site: Live) -> tuple[object, ...]:
    """All that the pool could change: counts, partitions, instances, the catalogue."""
    nodes = [site.slurm("scontrol", "--oneliner", "show", "node", node) for node in site.lab.nodes]
    gres = [[word for word in node.split() if word.startswith(("Gres=", "State="))] for node in nodes]
    catalogue = site.lab.catalogue
    text = catalogue.read_text() if catalogue.exists() else None
    return gres, site.slurm("scontrol", "show", "partition"), site.slices(), text


def test_a_pool_that_is_only_observed_is_told_of_and_left_as_it_is(site: Live) -> None:
    commands.stop(site.lab.name, "controller", site.base)
    site.lab.catalogue.unlink()
    site.slurm("scontrol", "reconfigure")
    layout = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{7g.80gb: 1}")
    site.lab.pool_config.write_text(site.policy(layout) + "policy: {mode: observe}\n")
    site.until(lambda: {site.node_state(node) for node in site.lab.nodes} == {"idle"}, "the nodes are back")
    before = everything(site)
    commands.start(site.lab.name, "controller", site.base)
    site.until(lambda: "7g.80gb" in site.vgpu("plan").out, "it has seen the GPUs and says what it would do")
    plan = json.loads(site.vgpu("plan", "--json").out)
    assert {gpu["action"] for gpu in plan["gpus"]} == {"change"}
    ran = site.vgpu("apply", "--wait", "60")
    assert (ran.code, "only observed" in ran.err) == (0, True)
    for node in site.lab.nodes:
        commands.kill(site.lab.name, f"agent:{node}", site.base)
    site.submit("alice", script="true")
    site.until(lambda: not site.slurm("squeue", "--noheader"), "a job without slices runs")
    status = json.loads(site.vgpu("status", "--json").out)
    assert (status["mode"], len(status["nodes"])) == ("observe", 2)
    assert status["passes"] > 0
    wait_found(site)
    assert "only observes" in site.vgpu("status").out
    assert everything(site) == before
