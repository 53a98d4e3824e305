"""Bob, in no group, against the pool: he opens nothing of alice's, gets no slice not granted, and keeps nobody out."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_plugin.lab import commands, simgpu
from tests.e2e.live import SEE, Live, seen
from tests.e2e.test_isolation import caps, uid

pytestmark = pytest.mark.slurm

NODE = "n1"
FLOOD = 10_000
SILENT = 900
REFUSED = ("Permission denied", "Operation not permitted", "Read-only file system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Alice's running job on NODE."""

    job: str
    slice: str
    devices: list[Path]


@pytest.fixture
def victim(live: Live) -> Iterator[Victim]:
    """What she has, before and after the attack; and the pool serves others then as before."""
    job = live.submit("alice", "--gres=vgpu:2g.20gb", f"-w{NODE}")
    [(_, (slice_,))] = live.wait_sees("alice", job)
    devices = caps(live, slice_)
    yield Victim(job=job, slice=slice_, devices=devices)
    assert live.state(job) == "RUNNING"
    assert [path.stat().st_uid for path in devices] == [uid("alice")] * 2
    assert grants(live)[job] == (uid("alice"), (slice_,))
    following = live.submit("alice", "--gres=vgpu:1g.10gb", f"-w{NODE}")
    live.wait_sees("alice", following)
    assert {live.node_state(node) for node in live.lab.nodes} <= {"mixed", "idle", "allocated", "completing"}


def grants(live: Live) -> dict[str, tuple[int, tuple[str, ...]]]:
    """(uid, slices) of each job that has any, as the agents told."""
    nodes = json.loads(live.vgpu("status", "--json").out)["nodes"]
    held = [grant for node in nodes for grant in node["grants"] if grant["slices"]]
    return {str(grant["job_id"]): (grant["uid"], tuple(grant["slices"])) for grant in held}


IMPORTS = """
import asyncio, concurrent.futures.thread, encodings.idna, os, socket, sys
from pathlib import Path
from slurm_plugin.errors import VgpuError
from slurm_plugin.link import client, munge
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.cases.impostor import POOL, stand_in
"""
SAY = """
def say(request):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(20)
        try:
            caller.connect({path!r})
            caller.sendall(request)
            return b"".join(iter(lambda: caller.recv(65536), b"")).decode()
        except OSError as error:
            return f"err {{error}}"
"""


def bobs(live: Live, code: str, *, title: str = "bob") -> "subprocess.Popen[str]":
    """Python code that runs as bob, in a process with this title. It is loaded as root: he may not read the sources."""
    become = f"os.setgroups([]); os.setgid({uid('bob')}); os.setuid({uid('bob')})\n"
    return subprocess.Popen(
        [title, "-c", IMPORTS + become + code],
        executable=sys.executable,
        env=live.env | {"PYTHONPATH": ":".join([str(Path(__file__).parents[2]), *sys.path])},
        cwd=live.home("bob"),
        stdout=subprocess.PIPE,
        text=True,
    )


def as_bob(live: Live, code: str, *, title: str = "bob") -> str:
    """What it prints."""
    with bobs(live, code, title=title) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out


def agent(live: Live) -> str:
    return SAY.format(path=str(live.lab.agent_socket(NODE)))


# At the devices


def test_he_opens_changes_and_replaces_no_device_of_hers(live: Live, victim: Victim) -> None:
    tools = ["cat {}", "chmod 777 {}", "chown bob {}", "rm -f {}", "mv {} mine", "ln -f {} mine", "ln -sf /etc {}"]
    for path in (*victim.devices, victim.devices[0].with_name("nvidia-cap1")):
        for tool in tools:
            ran = live.run("bob", "sh", "-c", tool.format(path), LC_ALL="C")
            assert ran.code != 0, ran
            assert any(word in ran.err for word in REFUSED), ran


def test_he_does_not_leave_his_jobs_cgroup(live: Live, victim: Victim) -> None:
    script = (
        f"{SEE}; set -- $(awk '$3 == \"cgroup2\" {{print $2}}' /proc/mounts) /nowhere;"
        " for file in $1/cgroup.procs $1$(sed -n s/^0:://p /proc/self/cgroup)/cgroup.procs;"
        " do echo $$ 2>&1 > $file && echo left; done; echo done"
    )
    job = live.submit("bob", "--gres=vgpu:2g.20gb", f"-w{NODE}", script=script)
    live.until(lambda: "done" in live.output("bob", job), "he tried")
    assert "left" not in live.output("bob", job)


KEEPER = """
import os, socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("keeper")
listener.listen()
print("listens", flush=True)
time.sleep(1000)
"""
SENDER = """
import os, socket, time
while not os.path.exists("device"):
    time.sleep(0.1)
device = os.open(open("device").read(), os.O_RDONLY)
kept = socket.socket(socket.AF_UNIX)
kept.connect("keeper")
socket.send_fds(kept, [b"x"], [device])
print("sent", flush=True)
"""


def test_a_descriptor_that_he_left_in_a_socket_of_another_job_is_not_there_when_the_slice_is_hers(
    live: Live, victim: Victim
) -> None:
    for name, code in (("keep.py", KEEPER), ("send.py", SENDER)):
        (live.home("bob") / name).write_text(code)
    keeper = live.submit("bob", f"-w{NODE}", script="exec python3 keep.py")
    live.until(lambda: "listens" in live.output("bob", keeper), "he listens")
    sender = live.submit("bob", "--gres=vgpu:2g.20gb", f"-w{NODE}", script=f"{SEE}; exec python3 send.py")
    [(_, (slice_,))] = live.wait_sees("bob", sender)
    fresh = live.home("bob") / "device.new"
    fresh.write_text(str(caps(live, slice_)[0]))
    fresh.rename(fresh.with_suffix(""))
    live.until(lambda: "sent" in live.output("bob", sender), "he sent it")
    live.until(lambda: "bob): descriptors on their way through a socket" in holder(live, slice_), "it is withheld")
    hers = live.submit("alice", "--gres=vgpu:2g.20gb", f"-w{NODE}")
    live.until(lambda: hers in grants(live) or live.state(hers) == "PENDING", "hers was looked at")
    assert slice_ not in grants(live).get(hers, (0, ()))[1]
    live.slurm("scancel", keeper)
    live.until(lambda: not holder(live, slice_), "it is offered again")
    live.wait_sees("alice", hers)


def holder(live: Live, uuid: str) -> str:
    """Who keeps this slice from others, as the status tells."""
    nodes = json.loads(live.vgpu("status", "--json").out)["nodes"]
    slices = [one for node in nodes for gpu in node["gpus"] for one in gpu["slices"]]
    return next((str(one["held_by"]) for one in slices if one["uuid"] == uuid), "")


# At the agent's socket


def test_no_word_on_the_agents_socket_gets_him_anything(live: Live, victim: Victim) -> None:
    forged = [
        *(f"{verb} job={victim.job}" for verb in ("prolog", "epilog", "task", "bind")),
        *("task", "task localid=0 ntasks=1", "bind localid=0", "bind", "task localid=9999999999", "prolog job=0"),
        *("bind localid=-1", "task uid=0", "prolog uid=0 job=1", f"epilog  job={victim.job}", "exit 0", "out x"),
    ]
    code = f"print([say(line.encode() + b'\\n') for line in {forged!r}])"
    answers = ast.literal_eval(as_bob(live, agent(live) + code))
    assert len(answers) == len(forged)
    for answer in answers:
        assert answer.endswith("exit 1\n"), answer
        assert "out " not in answer


def test_a_process_that_is_called_like_hers_slurmstepd_is_not_taken_for_it(live: Live, victim: Victim) -> None:
    code = agent(live) + "print(repr([say(b'task localid=0 ntasks=1\\n'), say(b'bind localid=0\\n')]))"
    for title in (f"slurmstepd: [{victim.job}.batch]", f"slurmstepd: [{victim.job}.0]"):
        answers = ast.literal_eval(as_bob(live, code, title=title))
        assert all("in no job step" in answer for answer in answers)


def test_a_flood_of_requests_and_of_silent_callers_keeps_nobody_out(live: Live, victim: Victim) -> None:
    silence = f"""
silent = []
for _ in range({SILENT}):
    silent.append(socket.socket(socket.AF_UNIX))
    silent[-1].setblocking(False)
    silent[-1].connect_ex({str(live.lab.agent_socket(NODE))!r})
def many(_):
    return [say(b"task localid=0 ntasks=1\\n") for _ in range({FLOOD} // 8)]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    answers = [one for some in pool.map(many, range(8)) for one in some]
print(len(answers), sum("out " in one for one in answers))
"""
    with bobs(live, agent(live) + silence) as flood:
        jobs = [live.submit("alice", "--gres=vgpu:1g.10gb", f"-w{NODE}", script=SEE) for _ in range(3)]
        for job in jobs:
            [(_, uuids)] = live.wait_sees("alice", job)
            assert len(uuids) == 1
        out, _ = flood.communicate(timeout=60)
    assert out.split() == [str(FLOOD), "0"]


# At the controller's port, with munge


def test_with_a_credential_of_his_own_he_is_no_agent_and_no_admin(live: Live, victim: Victim) -> None:
    code = f"""
async def attack():
    his = munge.Munge(Path({str(live.lab.munge_socket)!r}))
    async with await client.open_link("127.0.0.1:{live.lab.ports.controller}", munge=his, server_uid=0) as link:
        for what in (link.apply, lambda: talk(link)):
            try:
                await what()
                print("let in")
            except VgpuError as error:
                print(type(error).__name__)
async def talk(link):
    async with link.session() as session:
        async for _ in session:
            pass
asyncio.run(attack())
"""
    assert as_bob(live, code).split() == ["Untrusted", "Untrusted"]
    refused = live.vgpu("apply", user="bob")
    assert refused.code != 0
    assert "may not make this call" in refused.err


def test_at_the_controllers_port_while_it_is_away_he_gives_no_orders(live: Live, victim: Victim) -> None:
    """A port above 1023 is anybody's. What he can prove is that he is bob."""
    place, there = f"127.0.0.1:{live.lab.ports.controller}", simgpu.snapshot(live.lab.sim_state(NODE))
    mine = there.slices()[victim.slice]
    idle = next(one for one in there.instances if one.gpu != mine.gpu)
    code = f"""
shape = pb.SliceShape(profile={idle.profile!r}, start={idle.start})
order = pb.ToAgent(step=pb.Step(id=1, gpu={there.gpus[idle.gpu]!r}, destroy=[shape]))
asyncio.run(stand_in({place!r}, munge.Munge(Path({str(live.lab.munge_socket)!r})), order))
"""
    commands.stop(live.lab.name, "controller", live.base)
    try:
        with bobs(live, code) as his:
            assert his.stdout is not None
            try:
                assert his.stdout.readline().strip() == str(live.lab.ports.controller)
                for _ in range(2 * len(live.lab.nodes)):
                    assert his.stdout.readline() == "called\n"  # by agents, again and again
                status = live.vgpu("status")
            finally:
                his.terminate()
                heard = his.stdout.read().split()
    finally:
        commands.start(live.lab.name, "controller", live.base)
    assert status.code != 0
    assert "answered another call" in status.err
    assert set(heard) <= {"called"}
    live.until(lambda: victim.job in grants(live), "the controller has its agents again")
    assert simgpu.snapshot(live.lab.sim_state(NODE)).slices().keys() == there.slices().keys()


def test_he_can_not_tell_slurm_that_a_node_has_more(live: Live, victim: Victim) -> None:
    before = live.published(NODE)
    assert live.run("bob", "scontrol", "update", f"nodename={NODE}", "gres=vgpu:7g.80gb:1000").code != 0
    assert live.published(NODE).keys() >= before.keys()


# With the environment of his own job

EVIL_LIBRARY = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void)
{
    char exe[512] = {0};
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) return;
    int fd = open("%s", O_WRONLY | O_CREAT | O_APPEND, 0666);
    dprintf(fd, "%%d %%s\\n", (int)getuid(), exe);
}
"""


def test_no_variable_of_his_steers_a_hook(live: Live, victim: Victim) -> None:
    home = live.home("bob")
    marks = home / "marks"
    (home / "evil.c").write_text(EVIL_LIBRARY % marks)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", home / "evil.so", home / "evil.c"], check=True, timeout=60)
    for name in ("squeue", "scontrol", "sh", "env"):
        program = home / name
        program.write_text(f'#!/bin/sh\necho $(id -u) program {name} >> {marks}\nexec /usr/bin/{name} "$@"\n')
        program.chmod(0o755)
    evil = {
        "LD_PRELOAD": str(home / "evil.so"),
        "LD_LIBRARY_PATH": str(home),
        "LD_AUDIT": str(home / "evil.so"),
        "BASH_ENV": str(home / "env"),
        "ENV": str(home / "env"),
        "PATH": f"{home}:/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": victim.slice,
        "NVIDIA_VISIBLE_DEVICES": "all",
        "VGPU_SLICES": victim.slice,
        "SLURM_JOB_ID": victim.job,
        "SLURM_LOCALID": "-1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x999999999999999999),1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "99999999999999999999",
    }
    exported = ",".join(["ALL", *(f"{name}={value}" for name, value in evil.items() if "," not in value)])
    job = live.submit(
        "bob", "--gres=vgpu:1g.10gb", f"-w{NODE}", f"--export={exported}", script=f"{SEE}; exec sleep 1000"
    )
    [(_, (his,))] = live.wait_sees("bob", job)
    assert grants(live)[job] == (uid("bob"), (his,))
    lines = [line.split(" ", 1) for line in marks.read_text().splitlines()]
    assert lines, "the library was loaded at all"
    assert {who for who, _ in lines} == {str(uid("bob"))}
    assert not [what for _, what in lines if "vgpu" in what]


def test_vgpu_bind_goes_by_where_he_is_and_not_by_what_he_says(live: Live, victim: Victim) -> None:
    bind = live.lab.hooks(NODE) / "vgpu-bind"
    outside = live.run("bob", str(bind), "printenv", "CUDA_VISIBLE_DEVICES", SLURM_JOB_ID=victim.job, SLURM_LOCALID="0")
    assert outside.code != 0
    assert victim.slice not in outside.out
    script = f"{SEE}; echo bound $(SLURM_JOB_ID={victim.job} SLURM_LOCALID=0 {bind} printenv CUDA_VISIBLE_DEVICES)"
    job = live.submit("bob", "--gres=vgpu:1g.10gb", f"-w{NODE}", script=script)
    [(_, (his,))] = live.wait_sees("bob", job)
    live.until(lambda: "bound" in live.output("bob", job), "he tried")
    assert f"bound {his}\n" in live.output("bob", job)


# With words


NAMES = [
    "x\nJobId=1 JobName=y\n   UserId=root(0) StartTime=2001-01-01T00:00:00 TresPerNode=gres:vgpu:3g.40gb:4",
    "$(touch PWNED) `touch PWNED`; touch PWNED | touch PWNED & '\"\\",
    "vgpu-mem:8,vgpu:3g.40gb:2 \u202e\u00e4\U0001f600 %x %j %n",
    "--gres=vgpu:3g.40gb\tgres/vgpu=9",
]


def test_names_comments_and_folders_are_only_words(live: Live, victim: Victim) -> None:
    folders: list[Path] = []
    try:
        for name in NAMES:
            folders.append(live.home("bob") / name.replace("/", "_"))
            folders[-1].mkdir()
            os.chown(folders[-1], uid("bob"), uid("bob"))
            words = [f"--job-name={name}", f"--comment={name}", f"--chdir={folders[-1]}"]
            job = live.submit("bob", "--gres=vgpu:1g.10gb", f"-w{NODE}", *words, f"--output={live.home('bob')}/%j.out")
            [(_, (his,))] = live.wait_sees("bob", job)
            assert grants(live)[job] == (uid("bob"), (his,))
            assert live.profiles([his]) == ["1g.10gb"]
        live.slurm("scancel", "--user=bob")
        live.until(lambda: grants(live).keys() == {victim.job}, "all is given back")
        assert not list(live.lab.folder.rglob("PWNED"))
    finally:
        for folder in folders:
            folder.rmdir()


def test_padding_and_weights_are_not_his_to_ask_for(live: Live, victim: Victim) -> None:
    waiting = live.submit("bob", "--gres=vgpu:1g.10gb", f"-w{NODE}", "--hold", script="sleep 1000")
    for asked in (
        "vgpu:pad:1",
        "gres/vgpu:pad:3",
        "VGPU:PAD:1",
        "vgpu_mem:8",
        "vgpu:m20,vgpu_mem:0",
        "vgpu,vgpu:pad:1",
    ):
        ran = live.run("bob", "sbatch", f"--gres={asked}", f"-w{NODE}", "--wrap=sleep 1000")
        assert ran.code != 0, asked
        assert "GRES" in ran.err.upper() or "vgpu" in ran.err
        assert live.run("bob", "scontrol", "update", f"jobid={waiting}", f"gres={asked}").code != 0, asked


def test_he_joins_no_job_of_hers(live: Live, victim: Victim) -> None:
    ran = live.run("bob", "srun", f"--jobid={victim.job}", "--overlap", "sh", "-c", SEE)
    assert ran.code != 0
    assert seen(ran.out) == []


def test_a_heap_of_requests_does_not_make_the_pool_refuse_others(live: Live, victim: Victim) -> None:
    live.submit("bob", "--gres=vgpu:3g.40gb", "--array=1-1000", script="exec sleep 1000")
    live.submit("bob", "--gres=vgpu:4g.40gb:4", "--array=1-1000", script="exec sleep 1000")
    job = live.submit("alice", "--gres=vgpu:2g.20gb", f"-w{NODE}")
    live.wait_sees("alice", job)


# At the files


def test_he_reads_no_secret_and_writes_nothing_of_the_pools(live: Live, victim: Victim) -> None:
    lab = live.lab
    secrets = [lab.munge_key, *lab.state.glob("agent-*"), lab.state / "controller/nodes"]
    for path in secrets:
        assert live.run("bob", "ls", f"{path}/").code != 0 or path.is_file(), path
        assert live.run("bob", "sh", "-c", f"cat {path} {path}/* {path}/*/*").out == "", path
    walls = [path for path in (lab.folder, *lab.folder.rglob("*")) if "home" not in path.parts and path.is_dir()]
    tries = "; ".join(f"ln -s /etc/passwd {path}/x && echo {path}" for path in walls)
    assert live.run("bob", "sh", "-c", tries).out == ""
    files = [path for path in lab.folder.rglob("*") if "home" not in path.parts and path.is_file()]
    assert len(files) > 20
    writable = "; ".join(f"[ -w '{path}' ] && echo '{path}'" for path in files)
    assert {Path(line).name for line in live.run("bob", "sh", "-c", writable).out.splitlines()} <= DEVICES_OF_ALL


DEVICES_OF_ALL = {"nvidiactl", *(f"nvidia{minor}" for minor in range(4))}  # mode 0666 on every machine with a GPU


def test_he_commands_no_daemon_of_the_lab(live: Live, victim: Victim) -> None:
    folder = ("--name", live.lab.name, "--dir", str(live.base))
    ran = live.vgpu("lab", "kill", f"agent:{NODE}", *folder, user="bob")
    assert ran.code != 0
    assert "root runs lab" in ran.err
