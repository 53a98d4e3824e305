"""Jobs of a full site run in another, in real commands and their real output: the second part of `make demo`.

`python -m federation.lab.demo`. Every step checks that it did what it says, as in the first part.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from federation.lab.sites import NODE, Terms, write_sites
from slurm_plugin.lab import commands, processes
from slurm_plugin.lab.demo import Story, check, show, until
from slurm_plugin.lab.network import free_ports
from slurm_plugin.lab.site import Lab, LabSpec

HPC, CLOUD = "demo-hpc", "demo-cloud"
USER = "bob"
RULES = "{gpu: {opt: out, after_s: 1}}"
SLICES = 4  # of 10 GB or more, of each site's GPU
REQUEUE_S = 5  # how long a requeued job waits, which is two minutes on a real cluster
ACCOUNTED_S = 20.0  # that an end has to be in the accounting
END_S = 20.0  # that a daemon has to end
LOG_LINES = 10  # of each daemon, when a step failed
QUEUE = "squeue --format='%i %P %u %T %r %N'"
COUNTS = """\
#!/bin/sh
#SBATCH --stage-in=data.txt --stage-out=out/*
echo "in $SLURM_CLUSTER_NAME with $CUDA_VISIBLE_DEVICES"
mkdir out
wc -w < data.txt > out/words
exit 3
"""
WAITS = """\
#!/bin/sh
trap 'echo asked to end; exit 7' USR1
echo "in $SLURM_CLUSTER_NAME with $CUDA_VISIBLE_DEVICES"
while :; do sleep 0.2; done
"""


@contextmanager
def daemon(lab: Lab, folder: Path) -> Iterator[None]:
    """`fed daemon` beside a lab. By its mark it is the lab's, so that `vgpu lab down` ends one that was left behind."""
    argv = (Path(sys.executable).parent / "fed", "daemon", "--config", folder / "fed.yaml")
    marked = os.environ | {processes.MARK: f"{lab.folder}:fed"}
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(argv, env=marked, stdout=file, stderr=file) as process:
        try:
            until(lambda: process.poll() is not None or _answers(folder.with_suffix(".sock")), "fed daemon answers")
            check(process.poll() is None, f"fed daemon of {lab.name} runs")
            yield
            process.terminate()
            check(process.wait(END_S) == 0, f"fed daemon of {lab.name} ended as it should")
        except BaseException:
            print(*log.read_text().splitlines()[-LOG_LINES:], sep="\n", file=sys.stderr)
            raise
        finally:
            process.kill()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class Two:
    """Both sites, as their people see them."""

    def __init__(self) -> None:
        self.here, self.there = Story("hpc"), Story("cloud")

    def runs_there(self) -> list[str]:
        return self.there.quiet("squeue", "--noheader", "--format=%i").split()

    def begins(self, job: str) -> None:
        """Its output is here."""
        until(lambda: "MIG-" in self.here.read(f"slurm-{job}.out", by=USER), f"job {job} runs")

    def ends(self, job: str, state: str, code: str) -> None:
        """sacct shows this end of it, on the virtual node."""
        over = ("squeue", "--noheader", "--states=all", "--jobs", job, "--format=%T")
        until(lambda: self.here.quiet(*over) in ("", state), f"job {job} is {state}")
        wanted = re.compile(rf"{job}\|{state}( by \d+)?\|{code}\|{NODE}")
        asked = ("sacct", "-nXP", "-j", job, "--format=JobID,State,ExitCode,NodeList")
        processes.wait_until(lambda: wanted.fullmatch(self.here.quiet(*asked)) is not None, limit_s=ACCOUNTED_S)
        said = self.here.type(f"sacct -XP -j {job} --format=JobID,State,ExitCode,NodeList")
        check(wanted.search(said) is not None, f"sacct has {state} {code} on {NODE}")


def come_up(two: Two, stack: ExitStack) -> None:
    two.here.tell("Two Slurm sites with a GPU each. The first has a virtual node, behind which is the second's pool")
    spec = LabSpec(nodes=1, gpus=1, accounting=True, requeue_delay_s=REQUEUE_S, clouds=(NODE,), name=HPC)
    hpc = commands.up(spec)
    cloud = commands.up(LabSpec(nodes=1, gpus=1, name=CLOUD))
    folder = hpc.folder / "fed"
    folder.mkdir(mode=0o711)
    (port,) = free_ports(1)
    with redirect_stdout(StringIO()):  # what fed pki has to tell of each certificate
        write_sites(folder, hpc, cloud, Terms(user=USER, listen=port, reached=port, rules=RULES))
    two.here.enter(hpc, FED_SOCKET=str(folder / "hpc.sock"))
    two.there.enter(cloud, FED_SOCKET=str(folder / "cloud.sock"))
    for lab, name in ((cloud, "cloud"), (hpc, "hpc")):
        stack.enter_context(daemon(lab, folder / name))
    until(lambda: "up" in two.here.quiet("sinfo", "-h", "-p", "cloud", "-o", "%a"), "the cloud partition is open")
    two.here.type("fed pools")
    two.here.type("sinfo")
    two.there.type("sinfo")
    check(two.runs_there() == [], "nothing runs at the second site")


def fill(two: Two) -> None:
    two.here.tell("alice takes every slice of the first site")
    job = two.here.submit(f"--array=1-{SLICES} --gres=vgpu:10gb --burst=never", by="alice")
    running = ("squeue", "--noheader", "--array", "--jobs", job, "--states=RUNNING", "--format=%i")
    until(lambda: len(two.here.quiet(*running).split()) == SLICES, "alice's jobs run")
    two.here.type("vgpu status")


def flow_over(two: Two) -> tuple[str, str, str]:
    """Their ids."""
    here = two.here
    here.tell("bob wants slices as well. His jobs wait, and nothing in them says where they may run")
    here.put("counts.sh", COUNTS, by=USER)
    here.put("waits.sh", WAITS, by=USER)
    here.put("data.txt", "three words here\n", by=USER)
    here.type("cat counts.sh", by=USER)
    said = here.type("for job in waits waits counts; do sbatch --gres=vgpu:10gb $job.sh; done", by=USER)
    first, second, third = re.findall(r"Submitted batch job (\d+)", said)
    here.type(QUEUE, by=USER)
    here.tell("A rule lets them into the cloud partition, and they run: the same jobs, at the second site")
    for job in (first, second):
        two.begins(job)
        said = here.type(f"cat slurm-{job}.out", by=USER)
        check(f"in {CLOUD} with MIG-" in said, f"job {job} has a slice of {CLOUD}")
    here.type(QUEUE)
    two.there.type(QUEUE)
    check(here.quiet("squeue", "-h", "-j", first, "-o", "%T %N") == f"RUNNING {NODE}", "squeue shows it running")
    here.type(f"fed explain {first}")
    return first, second, third


def bring_home(two: Two, job: str) -> None:
    two.here.tell("One is over: its output, its files and its exit code are where they always are")
    two.ends(job, "FAILED", "3:0")
    two.here.type(f"cat slurm-{job}.out out/words", by=USER)
    check(two.here.read("out/words", by=USER) == "3\n", "what it wrote came home")


def cancel(two: Two, job: str) -> None:
    two.here.tell("One is cancelled")
    two.here.type(f"scancel {job}", by=USER)
    two.ends(job, "CANCELLED", "0:0")
    until(lambda: len(two.runs_there()) == 1, "nothing of it runs on at the second site")
    two.there.type(QUEUE)


def requeue(two: Two, job: str) -> None:
    two.here.tell("One is requeued: the old attempt is over before the new one begins")
    old = two.runs_there()
    two.here.type(f"scontrol requeue {job}", by=USER)
    two.here.type(QUEUE, by=USER)
    until(lambda: len(new := two.runs_there()) == 1 and new != old, "a new attempt runs at the second site")
    two.begins(job)
    two.here.type(QUEUE, by=USER)
    two.there.type(QUEUE)
    check(two.here.quiet("squeue", "-h", "-j", job, "-o", "%T %N") == f"RUNNING {NODE}", "it has its old id")
    two.here.type(f"scancel --batch --signal=USR1 {job}", by=USER)
    two.ends(job, "FAILED", "7:0")
    check("asked to end" in two.here.type(f"cat slurm-{job}.out", by=USER), "the signal reached it there")
    two.here.type("fed sacct --all-users")


def go_down(two: Two, folders: list[Path]) -> None:
    two.here.tell("Both go")
    for name in (HPC, CLOUD):
        two.here.type(f"vgpu lab down --name {name}")
    left = [folder for folder in folders if folder.exists() or processes.all_of(folder)]
    check(not left, "nothing is left: no process, no file")


def two_sites() -> None:
    two = Two()
    with ExitStack() as stack:
        come_up(two, stack)
        fill(two)
        cancelled, requeued, ended = flow_over(two)
        bring_home(two, ended)
        cancel(two, cancelled)
        requeue(two, requeued)
    go_down(two, [commands.DEFAULT_BASE / name for name in (HPC, CLOUD)])


if __name__ == "__main__":
    sys.exit(show(two_sites, HPC, CLOUD))
