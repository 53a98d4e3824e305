"""The lab itself: real Slurm daemons come up, are broken, and leave nothing behind. Most do without the pool."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab import commands, launch, processes
from slurm_plugin.lab.site import Lab, LabSpec

pytestmark = pytest.mark.slurm

LIMIT_S = 20.0


@pytest.fixture
def base() -> Iterator[Path]:
    """A short one: sockets have short paths. Every lab in it is taken down."""
    base = Path(tempfile.mkdtemp(prefix="lab", dir="/run"))
    base.chmod(0o755)
    yield base
    for folder in list(base.iterdir()) if base.exists() else []:
        commands.down(folder.name, base)
    if base.exists():
        base.rmdir()


def slurm(lab: Lab, *argv: str) -> str:
    env = commands.environment(lab.name, lab.folder.parent)
    return subprocess.run(argv, env=env, cwd="/", check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def pid_of(lab: Lab, daemon: str) -> int:
    state = commands.status(lab.name, lab.folder.parent)
    return next(one.pid for one in state.daemons if one.daemon == daemon)


def until(condition: Callable[[], bool]) -> None:
    assert processes.wait_until(condition, limit_s=LIMIT_S)


def kill(lab: Lab, daemon: str) -> None:
    """Kill it, and wait for the next one."""
    was = pid_of(lab, daemon)
    commands.kill(lab.name, daemon, lab.folder.parent)
    until(lambda: pid_of(lab, daemon) not in (0, was))


def start_hostile_job(lab: Lab) -> str:
    """A job whose script leaves a detached process behind and ignores being asked to end."""
    script = "trap '' TERM; echo up; setsid sh -c \"trap '' TERM; sleep 1000\" & srun sleep 1000; wait"
    out = lab.folder / "job.out"
    job = slurm(lab, "sbatch", "--parsable", f"--output={out}", "--wrap", script)
    until(lambda: out.exists() and "up" in out.read_text())
    until(lambda: len([p for p in processes.all_of(lab.folder) if p.name == "sleep"]) == 2)
    return job


def test_up_serves_and_down_leaves_nothing(base: Path) -> None:
    said: list[str] = []
    lab = commands.up(LabSpec(name="one", pool=False), base, said.append)
    assert said[-1] == "lab one is ready: 2 nodes, 4 GPUs each"
    assert slurm(lab, "srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME").splitlines() in (["n1", "n2"], ["n2", "n1"])
    with pytest.raises(LabError, match="there is a lab one already"):
        commands.up(LabSpec(name="one", pool=False), base)
    start_hostile_job(lab)
    assert commands.down("one", base)
    assert processes.all_of(lab.folder) == ()
    assert not lab.folder.exists()
    assert not commands.down("one", base)


def test_with_accounting_slices_are_charged_and_limited_and_nothing_listens_beyond_loopback(base: Path) -> None:
    lines = ("AccountingStorageEnforce=limits",)
    lab = commands.up(LabSpec(name="net", nodes=1, gpus=1, accounting=True, slurm_lines=lines), base)
    slurm(lab, "srun", "--gres=vgpu:20gb", "true")
    charged = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=AllocTRES")
    until(lambda: "gres/vgpu=1,gres/vgpu_mem=2" in slurm(lab, *charged))
    # three eighths of a GPU's memory for the account: a second quarter has to wait, though a slice is idle
    slurm(lab, "sacctmgr", "--immediate", "modify", "account", "root", "set", "GrpTRES=gres/vgpu_mem=3")
    for _ in range(2):
        slurm(lab, "sbatch", "--output=/dev/null", "--gres=vgpu:20gb", "--wrap=sleep 300")
    states = ("squeue", "--noheader", "--format=%T %r")
    until(lambda: sorted(slurm(lab, *states).splitlines()) == ["PENDING AssocGrpGRES", "RUNNING None"])
    pids = {str(process.pid) for process in processes.all_of(lab.folder)}
    listening = subprocess.run(["ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if any(f"pid={pid}," in line for pid in pids)]
    assert len(ours) == 4  # slurmctld, slurmd, slurmdbd, controller; database and agent have unix sockets only
    assert all(address.removeprefix("[::ffff:").startswith("127.0.0.1") for address in ours), ours


def test_two_labs_run_at_once_and_one_goes_without_the_other(base: Path) -> None:
    red = commands.up(LabSpec(name="red", nodes=1, gpus=1), base)
    blue = commands.up(LabSpec(name="blue", nodes=1, gpus=1, products=("a30-24gb",)), base)
    assert [lab.name for lab in commands.list_labs(base)] == ["blue", "red"]
    start_hostile_job(red)
    job = start_hostile_job(blue)
    assert slurm(red, "srun", "--gres=vgpu:40gb", "printenv", "CUDA_VISIBLE_DEVICES").startswith("MIG-")
    commands.down("red", base)
    assert slurm(blue, "squeue", "-h", "-o", "%i %T") == f"{job} RUNNING"
    assert slurm(blue, "srun", "--gres=vgpu:12gb", "printenv", "CUDA_VISIBLE_DEVICES").startswith("MIG-")
    assert len([p for p in processes.all_of(blue.folder) if p.name == "sleep"]) == 2


def test_down_works_after_the_supervisor_was_killed(base: Path) -> None:
    lab = commands.up(LabSpec(name="dead", nodes=1, pool=False), base)
    start_hostile_job(lab)
    os.kill(commands.status("dead", base).supervisor, signal.SIGKILL)
    until(lambda: commands.status("dead", base).supervisor == 0)
    with pytest.raises(LabError) as told:
        commands.kill("dead", "slurmctld", base)
    assert "vgpu lab down" in told.value.hint
    commands.down("dead", base)
    assert processes.all_of(lab.folder) == ()
    assert not lab.folder.exists()


def test_down_works_on_a_lab_that_never_got_further_than_its_folder(base: Path) -> None:
    (base / "half" / "etc").mkdir(parents=True)
    commands.down("half", base)
    assert not (base / "half").exists()


def test_a_lab_that_cannot_start_says_whose_fault_it_is(base: Path) -> None:
    spec = LabSpec(name="bad", nodes=1, pool=False, slurm_lines=("SelectType=select/nonsense",))
    with pytest.raises(LabError, match="slurmctld ends as soon as it starts") as told:
        commands.up(spec, base)
    assert "select/nonsense" in told.value.hint
    assert processes.all_of(base / "bad") == ()
    assert (base / "bad" / "log" / "slurmctld.out").exists()  # to look at, until it is taken down


def test_what_dies_comes_back_and_what_is_stopped_stays_down(base: Path) -> None:
    lab = commands.up(LabSpec(name="hurt", nodes=1, pool=False), base)
    for daemon in ("slurmctld", "munged", "slurmd:n1"):
        kill(lab, daemon)
    until(lambda: commands.status("hurt", base).lacks == "")
    assert slurm(lab, "srun", "hostname") == lab.hostname
    start_hostile_job(lab)
    commands.stop("hurt", "slurmd:n1", base)
    assert pid_of(lab, "slurmd:n1") == 0
    assert {p.name for p in processes.jobs_of(lab.node_slurm_conf("n1"), lab.spool("n1"))} >= {"slurmstepd", "sleep"}
    commands.start("hurt", "slurmd:n1", base)
    until(lambda: pid_of(lab, "slurmd:n1") != 0)
    with pytest.raises(LabError, match="no daemon 'nonsense'") as told:
        commands.kill("hurt", "nonsense", base)
    assert told.value.hint == "one of munged, slurmctld, slurmd:n1"


def test_the_environment_sets_up_a_shell(base: Path) -> None:
    lab = commands.up(LabSpec(name="env", nodes=1, pool=False), base)
    text = commands.environment_text(commands.environment("env", base))
    done = subprocess.run(
        ["sh", "-c", 'eval "$1"; sinfo -h -o %N; echo $VGPU_LAB $VGPU_LAB_DIR', "-", text],
        env={"PATH": "/usr/bin:/bin"}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"n1\nenv {base}\n"
    assert commands.environment("env", base, "n1")["VGPU_SIM_STATE"] == str(lab.sim_state("n1"))
    with pytest.raises(LabError, match="no node 'n9'"):
        commands.environment("env", base, "n9")


def test_the_wait_for_readiness_is_bounded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "READY_LIMIT_S", 0.3)
    monkeypatch.setattr(launch, "lacks", lambda lab: "only 0 of 1 nodes idle")
    with pytest.raises(LabError, match="not ready after 0 s: only 0 of 1 nodes idle"):
        commands.up(LabSpec(name="slow", nodes=1, pool=False), base)
    assert processes.all_of(base / "slow") == ()
