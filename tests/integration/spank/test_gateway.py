"""The gateway plugin: which steps it ends, what it tells the proxy of a job, and how it says that it is there."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from federation.overflow.frames import Hello, Limit, from_proxy
from tests.integration.spank.daemon import fields
from tests.integration.spank.plugin import (
    WITHOUT_PROGRAMS,
    WITHOUT_SU,
    Context,
    Plugin,
    Ran,
    Step,
    build,
    with_su,
)

UNBLOCKABLE = {signal.SIGKILL, signal.SIGSTOP}
OPTION = b"_SLURM_SPANK_OPTION_vgpu_burst_"
# In the proxy's place: what it is handed.
_PROXY = """\
#!/bin/sh
echo "$@" > {folder}/arguments
/bin/cat /proc/$$/fd/3 > {folder}/facts
/bin/cat <&4 > {folder}/script-read
exec 3<&- 4<&-
/bin/cat /proc/$$/environ > {folder}/environment
/bin/ls /proc/$$/fd > {folder}/open
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gateway")
    return build(folder, "gateway", "gateway.c", "gateway_host.c", "gateway_step.c")


@pytest.fixture
def plugin(program: Path, tmp_path: Path) -> Plugin:
    proxy = tmp_path / "proxy"
    proxy.write_text(_PROXY.format(folder=tmp_path))
    proxy.chmod(0o755)
    (tmp_path / "script").write_bytes(b"#!/bin/sh\necho \xff\0 ran\n")
    return Plugin(program=program, folder=tmp_path)


def arguments(plugin: Plugin, nodes: str = "cloud-") -> list[str]:
    folder = plugin.folder
    return [f"nodes={nodes}", f"proxy={folder}/proxy", f"socket={folder}/s", f"marks={folder}/marks"]


def batch(
    plugin: Plugin,
    *calls: str,
    env: Sequence[bytes] = (),
    argv: Sequence[bytes] = (),
    nodes: str = "cloud-",
    before: Sequence[str] = (),
    **own: str | int,
) -> Ran:
    return plugin.run(
        Context.REMOTE,
        *(calls or ("init", "task")),
        arguments=arguments(plugin, nodes),
        env=env,
        argv=(bytes(plugin.folder / "script"), *argv),
        before=before,
        **{"SLURMD_NODENAME": "cloud-1", **own},
    )


def hello(plugin: Plugin) -> Hello:
    found = from_proxy(b"H", (plugin.folder / "facts").read_bytes())
    assert isinstance(found, Hello)
    return found


# -- which steps


def test_a_batch_script_on_a_virtual_node_becomes_the_proxy(plugin: Plugin) -> None:
    ran = batch(plugin)
    assert (ran.code, ran.returned, ran.err) == (0, {"init": "0"}, "")  # the task's call does not come back
    assert (plugin.folder / "arguments").read_text().split()[0::2] == [f"{plugin.folder}/s", "7"]
    assert (plugin.folder / "script-read").read_bytes() == b"#!/bin/sh\necho \xff\0 ran\n"


@pytest.mark.parametrize("step", [0, 1, 77, Step.INTERACTIVE, Step.PENDING])
def test_any_other_step_ends_before_anything_of_the_users(plugin: Plugin, step: int) -> None:
    ran = batch(plugin, "init", HOST_STEP=step)
    assert ran.returned == {"init": "-1"}
    assert ran.err == (
        "error: vgpu_gateway: cloud-1 runs batch scripts alone, and those elsewhere: no step, shell or task\n"
    )


@pytest.mark.parametrize(("node", "left"), [("cloud-1", {"fd:7": "-1"}), ("n1", {"fd:7": "0"})])
def test_a_step_keeps_no_prologs_pipe_that_slurmd_left_it(plugin: Plugin, node: str, left: dict[str, str]) -> None:
    """What is open there and is none stays so, and so does what slurmstepd has opened itself."""
    inherits = ("bash", "-c", 'exec "$@" 7> >(cat) 8< <(true) 9> /dev/null', "bash")
    calls = ("pipe", "init", "fd:7", "fd:8", "fd:9")
    ran = batch(plugin, *calls, "fd:4", before=inherits, SLURMD_NODENAME=node)
    assert ran.returned == {"pipe": "4", "init": "0", "fd:8": "0", "fd:9": "0", "fd:4": "1"} | left


def test_the_extern_step_may_be_and_has_no_task(plugin: Plugin) -> None:
    ran = batch(plugin, "init", "task", HOST_STEP=Step.EXTERN)
    assert (ran.code, ran.returned) == (1, {"init": "0"})


@pytest.mark.parametrize("calls", [("task",), ("task", "init")])
def test_a_task_that_no_step_began_does_not_run(plugin: Plugin, calls: tuple[str, ...]) -> None:
    ran = batch(plugin, *calls)
    assert (ran.code, ran.returned) == (1, {})
    assert not (plugin.folder / "facts").exists()


@pytest.mark.parametrize(
    ("node", "nodes", "ours"),
    [
        ("cloud-1", "cloud-", True),
        ("cloud-aws-12", "edge-,cloud-", True),
        ("n1", "cloud-", False),
        ("xcloud-1", "cloud-", False),
        ("cloud", "cloud-", False),
        ("edge-1", "cloud-,,edge-", True),
        ("n1", ",", False),
    ],
)
def test_other_nodes_jobs_run_as_they_always_did(plugin: Plugin, node: str, nodes: str, ours: bool) -> None:
    forged = [b"SLURMD_NODENAME=n9", b"SLURMD_NODENAME=cloud-7"]  # of the user's, which count for nothing
    ran = batch(plugin, env=forged, nodes=nodes, SLURMD_NODENAME=node)
    assert ran.returned == ({"init": "0"} if ours else {"init": "0", "task": "0"})
    assert (plugin.folder / "facts").exists() == ours


def test_a_slurm_that_does_not_say_which_node_this_is_starts_nothing(plugin: Plugin) -> None:
    ran = plugin.run(Context.REMOTE, "init", arguments=arguments(plugin), env=[b"SLURMD_NODENAME=n1"])
    assert ran.returned == {"init": "-1"}


def test_a_proxy_that_can_not_be_run_ends_the_job(plugin: Plugin) -> None:
    (plugin.folder / "proxy").unlink()
    ran = batch(plugin)
    assert (ran.code, ran.returned) == (1, {"init": "0"})
    assert "No such file or directory" in ran.err


@pytest.mark.parametrize("fault", ["missing", "symlink"])
def test_a_script_that_can_not_be_read_ends_the_job(plugin: Plugin, fault: str) -> None:
    script = plugin.folder / "script"
    script.unlink()
    if fault == "symlink":
        script.symlink_to("/etc/shadow")
    ran = batch(plugin)
    assert (ran.code, ran.returned) == (1, {"init": "0"})
    assert "this job can't be told to the daemon" in ran.err


# -- what it tells


def test_the_proxy_is_told_what_the_job_is(plugin: Plugin) -> None:
    env = [b"A=1", b"EMPTY=", b"M=a\nb\xff", b"NO_EQUALS", b"=odd", b"LD_PRELOAD=/tmp/x.so", b"BASH_ENV=/tmp/x"]
    batch(plugin, env=env, argv=[b"one", b"", b"t\nwo \xff"])
    found = hello(plugin)
    assert replace(found, env=()) == Hello(job_id=7, restarts=2, node="cloud-1", args=(b"one", b"", b"t\nwo \xff"))
    assert sorted(found.env) == sorted(pairs(env))


def test_an_arrays_task_says_which_it_is(plugin: Plugin) -> None:
    batch(plugin, HOST_ARRAY=5, HOST_TASK=0)
    assert (hello(plugin).array_id, hello(plugin).task_id) == (5, 0)


def test_limits_are_told_as_limits(plugin: Plugin) -> None:
    env = [b"SLURM_RLIMIT_NOFILE=1024", b"SLURM_RLIMIT_CPU=U60", b"SLURM_RLIMIT_AS=18446744073709551615"]
    odd = [b"SLURM_RLIMIT_", b"SLURM_RLIMIT_X", b"SLURM_RLIMIT_X=", b"SLURM_RLIMIT_X=-1", b"SLURM_RLIMIT_x=1"]
    odd += [b"SLURM_RLIMIT_=5", b"SLURM_RLIMIT_" + b"X" * 17 + b"=5"]  # no daemon takes a hello with one of these
    batch(plugin, env=[*env, *odd, b"SLURM_RLIMIT_" + b"X" * 500 + b"=1", b"SLURM_RLIMIT_X=" + b"1" * 500])
    assert hello(plugin).limits == (
        Limit(name="NOFILE", soft=1024, hard=-1),
        Limit(name="CPU", soft=60, hard=-1),
        Limit(name="AS", soft=-1, hard=-1),
    )


def test_the_options_are_told_though_slurm_takes_them_away_before_a_task(plugin: Plugin) -> None:
    env = [OPTION + b"burst=always", b"SLURM_SPANK_" + OPTION + b"stage_in=a,b\nc", OPTION + b"stage_in2=x", b"A=1"]
    batch(plugin, env=env)
    assert hello(plugin).env == ((b"A", b"1"), (OPTION + b"burst", b"always"), (OPTION + b"stage_in", b"a,b\nc"))


def test_the_proxy_gets_no_environment_and_no_open_file_of_slurmstepds(plugin: Plugin) -> None:
    hostile = [b"LD_PRELOAD=/tmp/evil.so", b"LD_LIBRARY_PATH=/tmp", b"GLIBC_TUNABLES=x=y", b"PATH=/tmp", b"ENV=/tmp/x"]
    batch(plugin, env=hostile, before=("sh", "-c", 'exec 5</etc/passwd 9</etc/passwd; exec "$@"', "sh"))
    assert (plugin.folder / "environment").read_bytes() in (b"", b"PWD=" + bytes(plugin.folder) + b"\0")
    beyond = {int(one) for one in (plugin.folder / "open").read_text().split()} - {0, 1, 2}
    assert beyond & {3, 4, 5, 6, 7, 8, 9} == set()  # from 10 on are the shell's own


def test_the_proxy_begins_with_every_signal_blocked(plugin: Plugin) -> None:
    """One that comes before it listens would end it, and the job with it."""
    shows = f"import signal\nprint(*map(int, signal.pthread_sigmask(0, [])), file=open('{plugin.folder}/mask', 'w'))\n"
    (plugin.folder / "proxy").write_text(f"#!{sys.executable} -IS\n{shows}")  # a shell would unblock them
    batch(plugin)
    assert set(map(int, (plugin.folder / "mask").read_text().split())) == signal.valid_signals() - UNBLOCKABLE


@pytest.mark.parametrize("seed", range(5))
def test_any_environment_arrives_as_it_was(plugin: Plugin, seed: int) -> None:
    noise = random.Random(seed)
    env = [bytes(noise.choices(range(1, 256), k=noise.randrange(1, 3000))) for _ in range(200)]
    batch(plugin, env=env)
    assert sorted(hello(plugin).env) == sorted(pairs(env))


def test_nothing_of_the_jobs_environment_is_left_to_slurmstepd(plugin: Plugin) -> None:
    """It would hand it to a TaskEpilog, which it runs as the user; by SLURM_UMASK it opens the job's files."""
    env = [b"LD_PRELOAD=/tmp/x.so", b"SLURM_CONF=/tmp/x", b"PATH=/tmp", b"SLURM_UMASK=0022", OPTION + b"burst=auto"]
    assert batch(plugin, "init", "left", env=env).returned == {"init": "0", "left": "1"}
    assert batch(plugin, "init", "left", env=[env[3]]).returned == {"init": "0", "left": "1"}
    assert batch(plugin, "init", "left", env=env, SLURMD_NODENAME="n1").returned == {"init": "0", "left": "5"}


def pairs(env: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (one.partition(b"=") for one in env)]


# -- its line in plugstack.conf, and the host


@pytest.mark.parametrize("context", [Context.SLURMD, Context.REMOTE])
@pytest.mark.parametrize(
    "line",
    [[], ["nodes="], ["proxy=/x"], ["nodes=a-", "sockets=/x"], ["nodes=a-", "proxy=x"], ["nodes=a-", "marks=x", "x"]],
)
def test_a_line_that_it_does_not_understand_starts_nothing(plugin: Plugin, context: Context, line: list[str]) -> None:
    ran = plugin.run(context, "init", arguments=line, SLURMD_NODENAME="n1")
    assert ran.returned == {"init": "-1"}
    assert ran.err.startswith("error: vgpu_gateway: plugstack.conf: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("context", [Context.LOCAL, Context.ALLOCATOR])
def test_it_does_nothing_to_commands(plugin: Plugin, context: Context) -> None:
    ran = plugin.run(context, "init", arguments=["whatever"])
    assert (ran.returned, ran.err) == ({"init": "0"}, "")


def test_slurmd_does_not_start_without_a_proxy_that_is_roots_alone(plugin: Plugin) -> None:
    def starts() -> bool:
        return plugin.run(Context.SLURMD, "init", arguments=arguments(plugin)).returned == {"init": "0"}

    proxy = plugin.folder / "proxy"
    assert starts()
    proxy.chmod(0o775)
    assert not starts()
    proxy.chmod(0o644)
    assert not starts()
    proxy.chmod(0o755)
    shutil.chown(proxy, "nobody")
    assert not starts()
    proxy.unlink()
    assert not starts()


def mark(plugin: Plugin, *before: str) -> str:
    ran = plugin.run(Context.JOB_SCRIPT, "prolog", arguments=arguments(plugin), before=before)
    assert ran.returned == {"prolog": "0"}, ran.err
    return (plugin.folder / "marks/7").read_text()


def test_the_mark_before_a_prolog_says_that_all_is_well_or_what_is_not(plugin: Plugin) -> None:
    assert mark(plugin) == "slurmd can run su here: it must not, see docs/overflow_plugins.md\n"
    assert mark(plugin, *WITHOUT_SU) == "ok\n"
    (plugin.folder / "proxy").unlink()
    assert mark(plugin, *WITHOUT_SU) == "there is no proxy where proxy= says\n"


def test_what_slurmd_may_have_for_su_is_the_program_beside_the_proxy(plugin: Plugin, built: Path) -> None:
    ours, copy = plugin.folder / "vgpu-no-su", plugin.folder / "copy"
    for place in (ours, copy):
        shutil.copy(built / "vgpu-no-su", place)
    assert mark(plugin, *with_su(ours)) == "ok\n"
    assert mark(plugin, *with_su(copy)).startswith("slurmd can run su here")
    ours.chmod(0o775)
    assert mark(plugin, *with_su(ours)).startswith("slurmd can run su here")
    assert mark(plugin, *WITHOUT_PROGRAMS).startswith("there is no su here")


def test_what_is_there_for_su_says_that_nothing_is_set(built: Path) -> None:
    """In the words that slurmd waits for."""
    start, stop = "XXXXSLURMSTARTPARSINGHEREXXXX", "XXXXSLURMSTOPPARSINGHEREXXXXX"
    command = f"/bin/echo; /bin/echo; /bin/echo; /bin/echo {start}; /usr/sbin/slurmstepd getenv; /bin/echo {stop}"
    for words in (("-", "alice", "-c", command), ("alice", "-c", command)):
        ran = subprocess.run([built / "vgpu-no-su", *words], capture_output=True, text=True, check=True)
        assert ran.stdout == f"{start}\n{stop}\n"
    assert subprocess.run([built / "vgpu-no-su"], capture_output=True, check=True).stdout == b""


def test_a_mark_is_a_new_file_of_roots(plugin: Plugin) -> None:
    target = plugin.folder / "target"
    target.write_text("kept")
    (plugin.folder / "marks").mkdir()
    (plugin.folder / "marks/7").symlink_to(target)
    assert mark(plugin, *WITHOUT_SU) == "ok\n"
    assert target.read_text() == "kept"


def test_a_prolog_with_a_wrong_line_leaves_no_mark(plugin: Plugin) -> None:
    ran = plugin.run(Context.JOB_SCRIPT, "prolog", arguments=["nodes=a-", "x"])
    assert ran.returned == {"prolog": "-1"}
    assert not (plugin.folder / "marks").exists()


def test_facts_are_written_as_the_codec_reads_them() -> None:
    assert from_proxy(b"H", fields((2, b"7"), (6, b"cloud-1"))) == Hello(job_id=7, node="cloud-1")
