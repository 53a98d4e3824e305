"""Jobs on a virtual node under a real slurmctld and slurmd: what reaches the daemon, and that nothing runs there."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.overflow.frames import Data, Signalled, Stream
from tests.e2e.bare_slurm import NOBODY, wait
from tests.e2e.virtual_node import NODE, VirtualNode, virtual_node
from tests.integration.spank.daemon import SPANK, Line

pytestmark = pytest.mark.slurm

OPTION = b"_SLURM_SPANK_OPTION_vgpu_burst_"


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualNode]:
    subprocess.run(["flock", str(SPANK), "make", "-s", "-C", str(SPANK)], check=True)
    with virtual_node() as node:
        yield node


@pytest.fixture
def node(cluster: VirtualNode) -> Iterator[VirtualNode]:
    """After every test: nothing of a user's has run."""
    yield cluster
    cluster.slurm.cancel_all("--full", "--signal=KILL")
    cluster.slurm.cancel_all()
    wait(lambda: not cluster.slurm.jobs(), "an empty queue")
    assert cluster.ran() == set()


def pid_of_proxy(node: VirtualNode, job: str) -> int:
    found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_proxy(path, node, job)]
    assert len(found) == 1
    return int(found[0].name)


def _is_proxy(cmdline: Path, node: VirtualNode, job: str) -> bool:
    try:
        argv = cmdline.read_bytes().split(b"\0")
    except OSError:
        return False
    return argv[1:2] == [bytes(node.socket)] and argv[-2] == job.encode()


def end(line: Line, node: VirtualNode, job: str, code: int = 0) -> None:
    line.end(code)
    node.wait_job(job, "COMPLETED" if code == 0 else "FAILED")


# -- what becomes of a batch script


def test_a_batch_script_is_told_to_the_daemon_and_its_output_and_exit_code_are_the_jobs(node: VirtualNode) -> None:
    job = node.submit(
        "echo here", "--job-name=a name", "--export=ALL,A=1", LD_PRELOAD="/tmp/none.so", BASH_ENV="/tmp/x"
    )
    line = node.daemon.accept()
    hello = line.welcome()
    assert (str(hello.job_id), hello.node, hello.restarts, hello.task_id) == (job, NODE, 0, -1)
    assert hello.script.startswith(b"#!/bin/sh\necho here\n")
    assert (hello.folder, hello.joined, hello.regular, hello.stdout_size) == (b"/tmp", True, True, 0)
    env = dict(hello.env)
    assert (env[b"A"], env[b"SLURM_JOB_NAME"], env[b"LD_PRELOAD"]) == (b"1", b"a name", b"/tmp/none.so")
    assert {limit.name for limit in hello.limits} >= {"NOFILE", "CORE", "STACK"}
    line.relay(Stream.STDOUT, b"from there \0\xff")
    line.end(3)
    assert node.wait_job(job, "FAILED")["ExitCode"] == "3:0"
    assert (node.users / f"{job}.out").read_bytes() == b"from there \0\xff"
    assert (node.slurm.folder / f"told-{job}").read_text() == "ok\n"  # before the prolog


def test_the_arguments_umask_and_files_of_a_job_are_told(node: VirtualNode) -> None:
    script = node.users / "script"
    script.write_text(f"#!/bin/sh\n#SBATCH --error={node.users}/other.err\ntouch {node.users}/ran-0\n")
    (node.users / "appended.out").write_bytes(b"before\n")
    os.chown(node.users / "appended.out", NOBODY, NOBODY)
    append = ("--open-mode=append", f"--output={node.users}/appended.out", "-p", "cloud")
    argv = ("sh", "-c", 'umask 027; exec "$@"', "sh", "sbatch", "--parsable", *append, str(script), "one", "t w\no")
    job = node.slurm.run(*argv, user=NOBODY).stdout.strip()
    line = node.daemon.accept()
    hello = line.welcome()
    assert hello.args == (b"one", b"t w\no")
    assert (hello.umask, hello.joined, hello.stdout_size, hello.stderr_size) == (0o027, False, 7, 0)
    line.send(Data(stream=Stream.STDOUT, offset=0, data=b"out"), Data(stream=Stream.STDERR, offset=0, data=b"err"))
    line.acked(3, 3)
    end(line, node, job)
    assert (node.users / "appended.out").read_text() == "before\nout"
    assert (node.users / "other.err").read_text() == "err"


def test_tasks_of_an_array_say_which_they_are(node: VirtualNode) -> None:
    job = node.submit("", "--array=3,5")
    lines = [node.daemon.accept(), node.daemon.accept()]
    hellos = [line.welcome() for line in lines]
    assert {(str(hello.array_id), hello.task_id) for hello in hellos} == {(job, 3), (job, 5)}
    for line in lines:
        line.end(0)
    wait(lambda: not node.slurm.jobs(), "both ends")


def test_a_signal_that_ended_the_job_there_ends_it_here(node: VirtualNode) -> None:
    job = node.submit("")
    line = node.daemon.accept()
    line.welcome()
    line.end(signal.SIGSEGV, by_signal=True)
    assert node.wait_job(job, "FAILED")["ExitCode"] == f"0:{int(signal.SIGSEGV)}"


def test_the_options_reach_the_daemon_in_every_way_they_can_be_given(node: VirtualNode) -> None:
    lines = "#SBATCH --burst=always\n#SBATCH --stage-in=data,more\n"
    for options in (
        ("--stage-in=last", "--stage-out=out/*"),
        ("--stage-in=last", "--stage-out=out/*", "--export=NONE"),
    ):
        job = node.submit(lines, *options)
        line = node.daemon.accept()
        env = dict(line.welcome().env)
        assert env[OPTION + b"burst"] == b"always"
        assert env[OPTION + b"stage_in"] == b"data,more,last"
        assert env[OPTION + b"stage_out"] == b"out/*"
        end(line, node, job)


@pytest.mark.parametrize("where", ["command", "script"])
@pytest.mark.parametrize(("name", "value"), [("--burst", "no/such"), ("--stage-in", "../x"), ("--stage-out", "/x")])
def test_a_wrong_word_is_refused_when_it_is_typed(node: VirtualNode, where: str, name: str, value: str) -> None:
    options = (f"{name}={value}",) if where == "command" else ()
    script = f"#!/bin/sh\n#SBATCH {name}={value}\n" if where == "script" else "#!/bin/sh\n"
    ran = node.slurm.run("sbatch", *options, stdin=script, user=NOBODY)
    assert ran.returncode != 0
    assert f"sbatch: error: {name}" in ran.stderr
    assert node.slurm.jobs() == []


def test_what_has_no_batch_script_can_not_be_told_to_burst(node: VirtualNode) -> None:
    for command in (("srun",), ("salloc", "true")):
        ran = node.slurm.run(command[0], "--burst=always", *command[1:], "true", user=NOBODY)
        assert ran.returncode != 0
        assert "only a batch job can run in the cloud: submit it with sbatch" in ran.stderr


# -- signals and ends


def test_signals_of_slurms_are_told_as_such(node: VirtualNode) -> None:
    job = node.submit("")
    line = node.daemon.accept()
    line.welcome()
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        node.slurm.run("scancel", "--batch", f"--signal={number.name[3:]}", job)
        assert line.signalled() == Signalled(number=number, from_stepd=True)
    os.kill(pid_of_proxy(node, job), signal.SIGTERM)
    assert line.signalled() == Signalled(number=signal.SIGTERM, from_stepd=False)
    assert node.slurm.job(job)["JobState"] == "RUNNING"
    node.slurm.run("scancel", job)
    got = [line.signalled()]
    while got[-1].number != signal.SIGTERM:
        got.append(line.signalled())
    assert all(one.from_stepd for one in got)
    line.end(signal.SIGTERM, by_signal=True)
    node.wait_job(job, "CANCELLED")


def test_a_job_that_is_suspended_stops_and_goes_on(node: VirtualNode) -> None:
    job = node.submit("")
    line = node.daemon.accept()
    line.welcome()
    node.slurm.run("scontrol", "suspend", job)
    assert line.signalled() == Signalled(number=signal.SIGTSTP, from_stepd=True)
    node.wait_job(job, "SUSPENDED")
    node.slurm.run("scontrol", "resume", job)
    assert line.signalled() == Signalled(number=signal.SIGCONT, from_stepd=True)
    end(line, node, job)


def test_a_proxy_dies_with_its_slurmstepd(node: VirtualNode) -> None:
    job = node.submit("", "--no-requeue")
    line = node.daemon.accept()
    line.welcome()
    status = Path(f"/proc/{pid_of_proxy(node, job)}/status").read_text()
    stepd = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("PPid:"))
    os.kill(stepd, signal.SIGKILL)
    assert line.is_closed()


def test_a_job_outlives_its_slurmd_and_a_daemon_that_is_away(node: VirtualNode) -> None:
    job = node.submit("")
    line = node.daemon.accept()
    line.welcome()
    line.relay(Stream.STDOUT, b"before")
    node.daemon.close()
    node.stop()
    node.serve()
    node.daemon.listen()
    node.socket.chmod(0o666)
    line = node.daemon.accept()
    assert line.welcome(stdout=6).stdout_next == 6
    line.relay(Stream.STDOUT, b" and after", at=6)
    end(line, node, job)
    assert node.output(job) == "before and after"


def test_a_job_takes_less_than_a_mebibyte_beside_its_slurmstepd(node: VirtualNode) -> None:
    job = node.submit("", f"--comment={'x' * 1000}")
    line = node.daemon.accept()
    line.welcome()
    line.relay(Stream.STDOUT, b"x" * (2 << 20))
    rollup = Path(f"/proc/{pid_of_proxy(node, job)}/smaps_rollup").read_text()
    used = {row.split()[0]: int(row.split()[1]) for row in rollup.splitlines()[1:]}
    assert used["Rss:"] < 1024
    end(line, node, job)


# -- what never runs there


def test_no_step_of_a_job_runs_there(node: VirtualNode) -> None:
    job = node.submit("")
    line = node.daemon.accept()
    line.welcome()
    touch = ("touch", f"{node.users}/ran-step")
    prolog = node.users / "own-prolog"
    prolog.write_text(f"#!/bin/sh\ntouch {node.users}/ran-prolog\n")
    prolog.chmod(0o755)
    for options in (("--overlap",), ("--overlap", "--mpi=none", f"--task-prolog={prolog}"), ("--overlap", "--pty")):
        ran = node.slurm.run("srun", f"--jobid={job}", *options, *touch, user=NOBODY, env={"LD_PRELOAD": "/tmp/x.so"})
        assert "launch failed" in ran.stderr  # 22.05's srun exits 0 all the same
    assert node.state() in ("mixed", "allocated")  # and not drained
    end(line, node, job)


def test_no_job_without_a_script_runs_there(node: VirtualNode) -> None:
    touch = ("touch", f"{node.users}/ran-step")
    for command in (("srun", "--partition=cloud"), ("salloc", "--partition=cloud", "srun")):
        assert "launch failed" in node.slurm.run(*command, *touch, user=NOBODY).stderr
    assert node.state() in ("idle", "completing")


def test_a_sites_task_epilog_has_nothing_of_the_users_there(node: VirtualNode, tmp_path: Path) -> None:
    """slurmstepd runs one after every task, as the user: a library of his would be loaded into it."""
    source, library = tmp_path / "preloaded.c", node.users / "preloaded.so"
    source.write_text(
        "#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
        "__attribute__((constructor)) static void ran(void)\n"
        '{\n    char path[512];\n    const char *node = getenv("SLURMD_NODENAME");\n'
        f'    snprintf(path, sizeof path, "{node.users}/preloaded-%s", node ? node : "");\n'
        "    open(path, O_CREAT, 0600);\n}\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    export = f"--export=ALL,LD_PRELOAD={library},SLURM_JOB_USER=forged,MARK=1"
    here = node.submit("", export, partition="plain")
    node.wait_job(here, "COMPLETED")
    assert list(node.users.glob("preloaded-n*"))  # so this is what must not be there
    assert "MARK=1" in (node.users / f"epilog-{here}").read_text()
    (node.users / f"ran-{here}").unlink()
    job = node.submit("", export)
    line = node.daemon.accept()
    assert dict(line.welcome().env)[b"LD_PRELOAD"] == bytes(library)
    end(line, node, job)
    left = (node.users / f"epilog-{job}").read_text()
    assert "SLURM_JOB_ID=" in left
    assert [name for name in ("LD_PRELOAD", "forged", "MARK", "PATH=") if name in left] == [], left
    assert not list(node.users.glob(f"preloaded-{NODE}"))


def test_no_login_shell_runs_there(node: VirtualNode) -> None:
    """slurmd starts one, as the job's user, before any plugin is asked: the gateway's slurmd finds no su."""
    for options in (("--get-user-env",), ("--export=NONE",)):
        job = node.submit("", *options)
        line = node.daemon.accept()
        line.welcome()
        end(line, node, job)
        assert (node.slurm.folder / f"told-{job}").read_text() == "ok\n"


def test_a_slurmd_that_can_run_su_is_told_of_before_the_prolog(node: VirtualNode) -> None:
    node.stop()
    node.serve(su=str(node.slurm.folder / "su"))
    try:
        job = node.submit("", "--export=NONE")
        line = node.daemon.accept()
        line.welcome()
        end(line, node, job)
        assert (node.slurm.folder / "su-ran").read_text().startswith("-")  # so this is what must not be
        assert (node.slurm.folder / f"told-{job}").read_text().startswith("slurmd can run su here")
    finally:
        node.stop()
        node.serve()


# -- a gateway that is not as it must be


def wrong_release(folder: Path) -> Path:
    """The plugin as another release of Slurm's headers makes it."""
    shutil.copytree("/usr/include/slurm", folder / "include/slurm")
    header = folder / "include/slurm/slurm_version.h"
    text = "\n".join(
        "#define SLURM_VERSION_NUMBER 0x140b00" if line.startswith("#define SLURM_VERSION_NUMBER ") else line
        for line in header.read_text().splitlines()
    )
    header.write_text(f"{text}\n")
    build = ("make", "-s", "-C", str(SPANK), f"B={folder}", f"SLURM_INCLUDE={folder}/include")
    subprocess.run([*build, f"{folder}/vgpu_gateway.so"], check=True)
    return folder / "vgpu_gateway.so"


@pytest.mark.parametrize("fault", ["missing", "broken", "release", "option"])
def test_a_slurmd_without_a_plugin_that_works_does_not_start(node: VirtualNode, fault: str, tmp_path: Path) -> None:
    good = node.plugin.read_bytes()
    node.stop()
    try:
        _break(node, fault, tmp_path)
        assert node.start().wait(20) != 0
    finally:
        node.plugin.write_bytes(good)
        (node.etc / "plugstack.conf").write_text(node.line)
        node.serve()


@pytest.mark.parametrize("fault", ["missing", "broken", "release", "option"])
def test_a_plugin_that_fails_under_a_running_slurmd_lets_no_script_run(
    node: VirtualNode, fault: str, tmp_path: Path
) -> None:
    good = node.plugin.read_bytes()
    try:
        _break(node, fault, tmp_path)
        job = node.submit("", "--no-requeue")
        wait(lambda: node.slurm.job(job).get("JobState") not in ("PENDING", "RUNNING", "CONFIGURING"), "its end")
        assert not (node.slurm.folder / f"told-{job}").exists()
    finally:
        node.plugin.unlink(missing_ok=True)
        node.plugin.write_bytes(good)
        (node.etc / "plugstack.conf").write_text(node.line)
        node.slurm.run("scontrol", "update", f"nodename={NODE}", "state=resume")
        wait(lambda: node.state() == "idle", "an idle node")


def _break(node: VirtualNode, fault: str, folder: Path) -> None:
    other = wrong_release(folder).read_bytes() if fault == "release" else b"\x7fELF no plugin"
    if fault == "option":
        (node.etc / "plugstack.conf").write_text(node.line.replace("nodes=", "node="))
    else:
        node.plugin.unlink()
    if fault in ("broken", "release"):
        node.plugin.write_bytes(other)


def test_a_plugstack_without_the_plugin_leaves_no_mark(node: VirtualNode) -> None:
    """This is what the gateway's prolog has to refuse. Here it does not, and the node runs what is no user's."""
    (node.etc / "plugstack.conf").write_text("")
    try:
        ran = node.slurm.run("sbatch", "--parsable", "-p", "cloud", "-o", "/dev/null", "--wrap=:", user=NOBODY)
        job = ran.stdout.strip()
        node.wait_job(job, "COMPLETED", "FAILED")
        assert not (node.slurm.folder / f"told-{job}").exists()
    finally:
        (node.etc / "plugstack.conf").write_text(node.line)
        (node.users / "taskprologs").unlink(missing_ok=True)


def test_commands_in_a_job_that_stays_here_do_not_take_its_options_for_theirs(node: VirtualNode) -> None:
    inner = f"sbatch --parsable -p plain -o {node.users}/inner.out --wrap env"
    job = node.submit(f"srun echo step; {inner}", "--burst=always", "--stage-in=a", partition="plain")
    node.wait_job(job, "COMPLETED")
    first, inner_job = node.output(job).splitlines()
    assert first == "step"
    node.wait_job(inner_job, "COMPLETED")
    assert "vgpu_burst" not in (node.users / "inner.out").read_text()
    (node.users / f"ran-{job}").unlink()


def test_other_nodes_run_jobs_as_ever(node: VirtualNode) -> None:
    job = node.submit("echo ran", "--burst=never", partition="plain", SLURMD_NODENAME=NODE)
    node.wait_job(job, "COMPLETED")
    assert node.output(job) == "ran\n"
    (node.users / f"ran-{job}").unlink()
