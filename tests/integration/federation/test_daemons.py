"""Two daemons as an admin starts them: what is submitted at one runs at the other, and all of it comes back."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from federation.model.token import RANDOM_BYTES, mint
from tests.integration.federation.daemons import GUEST, PATIENCE_S, Pair, pair


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    with pair() as found:
        yield found


def test_a_job_goes_there_and_its_output_and_code_come_back(both: Pair) -> None:
    job = both.edge.submit("--wrap", "echo out; echo err >&2; id -un; exit 7")
    both.edge.fed("wait", job, wants=7)
    done = both.edge.fed("logs", job)
    assert (done.stdout, done.stderr) == (b"out\nnobody\n", b"err\n")


def test_files_go_there_and_come_back(both: Pair, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(b"forty-two\n" * 300_000)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nmkdir out\ntr a-z A-Z < data.txt > out/big\n: > 'out/e m\tpty'\n")
    both.edge.submit("--stage-in", "data.txt", "--stage-out", "out/*", "job.sh", cwd=tmp_path)
    both.edge.fed("wait")
    assert (tmp_path / "out/big").read_bytes() == b"FORTY-TWO\n" * 300_000
    assert (tmp_path / "out/e m\tpty").read_bytes() == b""
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["big", "e m\tpty"]


def test_a_pattern_that_meant_no_file_is_told(both: Pair) -> None:
    job = both.edge.submit("--stage-out", "yes", "--stage-out", "no/*", "--wrap", "echo y > yes")
    waited = both.edge.fed("wait", job)
    assert b"exited 0: no file to bring back was meant by no/*" in waited.stderr
    assert shown(both, job)["why"] == "no file to bring back was meant by no/*"


def test_what_is_shown_of_a_job_is_a_document(both: Pair) -> None:
    job = both.edge.submit("--name", "a\nb", "--on-silence", "stop:1:00:00", "--wrap", "kill -9 $$")
    both.edge.fed("wait", job, wants=137)
    shown = json.loads(both.edge.fed("show", job, "--json").stdout)
    assert (shown["version"], shown["kind"], shown["name"]) == (1, "fed-job", "a\nb")
    assert (shown["state"], shown["end"], shown["signal"], shown["site"]) == ("done", "signaled", 9, "hpc")


def until(ready: Callable[[], bool]) -> None:
    """What it waits for is in another process, so it looks again and again."""
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def shown(both: Pair, job: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(both.edge.fed("show", job, "--json").stdout)
    return document


WRONG = [
    (("submit",), 2, "give a script or --wrap"),
    (("submit", "--wrap", "x", "--time", "soon"), 2, "'soon' is no time"),
    (("submit", "--wrap", "x", "--mem", "much"), 2, "'much' is no amount of memory"),
    (("submit", "--wrap", "x", "--array", "9-1"), 2, "has no tasks"),
    (("submit", "--wrap", "x", "--on-silence", "stop"), 2, "'stop' is none of keep, stop:TIME"),
    (("submit", "not-there"), 2, "No such file or directory: not-there"),
    (("submit", "--wrap", "x", "--env", "NOT_SET_HERE"), 2, "there is no such variable here"),
    (("submit", "--wrap", "x", "--stage-in", "../edge/fed.yaml"), 4, "none of them '', '.' or '..'"),
    (("submit", "--wrap", "x", "--stage-out", "/etc/*"), 4, "is absolute"),
    (("submit", "--wrap", "x", "--to", "mars"), 4, "there is no site mars"),
    (("submit", "--wrap", "x", "--to", "hpc/\udc80"), 4, "this site is no name"),
    (("submit", "--wrap", "x", "--gres", "foo:\udc80"), 4, "this gres is no name"),
    (("submit", "--wrap", "x", "--account", "a" * 5000), 4, "this account is no name"),
    (("show", "abcdef12"), 4, "no jobs of yours begin with abcdef12"),
    (("show", "a"), 4, "too short"),
    (("cancel", "no-hex"), 4, "is no job"),
    (("peers", "--socket", "/nowhere"), 5, "no daemon answers at /nowhere"),
]


@pytest.mark.parametrize(("words", "code", "text"), WRONG, ids=lambda one: one if isinstance(one, str) else None)
def test_what_is_wrong_is_told_in_two_lines(both: Pair, words: tuple[str, ...], code: int, text: str) -> None:
    done = both.edge.fed(*words, wants=code)
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: ")
    assert text in done.stderr.decode()


def test_a_job_gets_its_arguments_and_only_the_variables_that_may_cross(
    both: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.sh").write_text('#!/bin/sh\nprintf "%s|" "$@" "$A" "${LD_PRELOAD-none}" "${HOME_TOWN-none}"\n')
    monkeypatch.setenv("HOME_TOWN", "here")  # not asked for
    words = ("--env", "A=x, y\nz", "--env", "LD_PRELOAD=/evil", "job.sh", "--first", "two words")
    told = both.edge.fed("submit", *words, cwd=tmp_path)
    assert told.stderr == b"these variables never cross: LD_PRELOAD\n"
    job = told.stdout.decode().strip()
    both.edge.fed("wait", job)
    assert both.edge.fed("logs", job).stdout == b"--first|two words|x, y\nz|none|none|"


def test_an_array_is_one_name_and_each_of_its_tasks_a_job(both: Pair) -> None:
    script = "echo $ARRAY_TASK_ID of $ARRAY_TASK_COUNT in $ARRAY_JOB_ID; [ $ARRAY_TASK_ID != 5 ]"
    array = both.edge.submit("--array", "3-7:2", "--wrap", script)
    waited = both.edge.fed("wait", wants=1)  # the newest, whole
    assert waited.stderr == f"job {array}_5: exited 1\n".encode()
    for number in (3, 5, 7):
        assert both.edge.fed("logs", f"{array}_{number}").stdout == f"{number} of 3 in {array}\n".encode()
    listed = both.edge.fed("jobs", array).stdout.decode().splitlines()[1:]
    assert [line.split()[0] for line in listed] == [f"{array}_{number}" for number in (3, 5, 7)]
    assert both.edge.fed("show", array, wants=4).stderr.startswith(f"error: {array} is an array of 3 jobs\n".encode())
    assert b"no jobs of yours begin with" in both.edge.fed("show", f"{array}_4", wants=4).stderr


def test_an_array_is_ended_as_one(both: Pair) -> None:
    array = both.edge.submit("--array", "0-2", "--wrap", "[ $ARRAY_TASK_ID = 0 ] || sleep 1000")
    both.edge.fed("wait", f"{array}_0")
    both.edge.fed("cancel", array)  # one of them is over
    both.edge.fed("wait", array, wants=1)
    tasks = json.loads(both.edge.fed("jobs", array, "--json").stdout)["jobs"]
    assert [(one["task"], one["end"]) for one in tasks] == [(0, "exited"), (1, "cancelled"), (2, "cancelled")]
    assert both.edge.fed("cancel", array, wants=4).stderr.startswith(b"error: the job is over")


def test_a_running_job_is_signalled_and_another_is_cancelled(both: Pair) -> None:
    one = both.edge.submit("--wrap", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.1; done")
    other = both.edge.submit("--wrap", "sleep 1000")
    until(lambda: shown(both, one)["state"] == "running" and both.edge.fed("logs", one).stdout == b"ready\n")
    both.edge.fed("signal", "-s", "USR1", one)
    both.edge.fed("wait", one, wants=3)
    both.edge.fed("cancel", other)
    both.edge.fed("wait", other, wants=1)
    assert shown(both, other)["end"] == "cancelled"


def test_a_time_limit_has_a_code_of_its_own(both: Pair) -> None:
    both.edge.fed("wait", both.edge.submit("--time", "0:01", "--wrap", "sleep 1000"), wants=124)


def test_a_job_that_fits_nowhere_now_waits_and_says_why(both: Pair) -> None:
    full = "no pool fits now: hpc/batch: full: it takes no more jobs now"
    first = both.edge.submit("--cpus", "8", "--wrap", "sleep 1000")
    until(lambda: b" it is full" in both.edge.fed("doctor", wants=None).stdout)
    told = both.edge.fed("submit", "--wrap", "true")
    job = told.stdout.decode().strip()
    assert told.stderr == f"job {job} waits: {full}\n".encode()
    assert f"  {full.partition(': ')[2]}".encode() in both.edge.fed("explain", job).stdout
    with both.edge.begun("wait", job) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"job {job} is queued: {full}\n".encode()
        waiting.kill()
    for one in (job, first):
        both.edge.fed("cancel", one)
        both.edge.fed("wait", one, wants=1)


NEVER = [
    (("--gres", "vgpu:20gb"), "it has no slices", "no --gres"),
    (("--gres", "tape:1"), "what it has of tape:1 is not known", "--to hpc"),
    (("--cpus", "9"), "a job there has 8 CPUs at most", "--cpus 8"),
    (("--array", "0-99", "--cpus", "9"), "a job there has 8 CPUs at most", "--cpus 8"),
]


@pytest.mark.parametrize(("words", "why", "instead"), NEVER, ids=lambda one: one if isinstance(one, str) else None)
def test_what_no_pool_could_ever_run_is_refused_with_what_one_would(
    both: Pair, words: tuple[str, ...], why: str, instead: str
) -> None:
    until(lambda: b"hpc/batch" in both.edge.fed("pools").stdout)
    done = both.edge.fed("submit", *words, "--wrap", "true", wants=4)
    error, hint = done.stderr.decode().splitlines()
    assert error == f"error: no pool can run this: hpc/batch: {why}"
    assert hint == f"hint: hpc/batch takes it with {instead}"
    assert done.stdout == b""
    assert json.loads(both.edge.fed("jobs", "--json").stdout)["jobs"] == []


def test_whom_no_site_knows_is_told_at_once_and_nothing_is_left_waiting(both: Pair) -> None:
    until(lambda: b"hpc/batch" in both.edge.fed("pools").stdout)
    empty = {"args": [], "env": [], "asked": [], "outputs": [], "inputs": [], "folder": "/", "script_size": 9}
    token = str(mint(int(time.time() * 1000), os.urandom(RANDOM_BYTES)))
    question = {"do": "submit", "token": token, "name": "x", "settle": True} | empty
    told = json.loads(ask_with(both, question, "#!/bin/sh"))
    refused = "it refused this job: user nobody of edge is nobody here"
    assert told["error"]["message"] == f"no pool can run this: hpc/batch: {refused}"
    assert json.loads(ask(both, do="jobs"))["ok"]["jobs"] == []
    (left,) = json.loads(ask(both, do="jobs", done=True))["ok"]["jobs"]
    assert (left["job"], left["end"]) == (token, "cancelled")


def test_a_drained_site_takes_nothing_and_goes_on_when_it_is_told(both: Pair) -> None:
    both.edge.fed("drain")
    assert b"draining" in both.edge.fed("submit", "--wrap", "true", wants=5).stderr
    assert b"fed drain --end" in both.edge.fed("doctor", wants=1).stdout
    both.edge.fed("drain", "--end")
    both.edge.fed("wait", both.edge.submit("--wrap", "true"))
    assert b"nothing is wrong" in both.edge.fed("doctor").stdout


def test_results_wait_at_the_far_side_until_there_is_a_place_for_them(both: Pair, tmp_path: Path) -> None:
    home = tmp_path / "gone"
    home.mkdir()
    job = both.edge.submit("--stage-out", "result", "--wrap", "sleep 3; echo 42 > result", cwd=home)
    home.rmdir()
    until(lambda: "can't write to" in str(shown(both, job)["transfer"]))
    assert shown(both, job)["state"] == "results_pending"
    with both.edge.begun("wait", job) as waiting:
        assert waiting.stderr is not None
        assert b"is results_pending: root can't write to" in waiting.stderr.readline()
        home.mkdir()
        assert waiting.wait(PATIENCE_S) == 0
    assert (home / "result").read_text() == "42\n"


def test_results_that_there_is_no_place_for_are_given_up_when_somebody_says_so(both: Pair, tmp_path: Path) -> None:
    home = tmp_path / "gone"
    home.mkdir()
    job = both.edge.submit("--stage-out", "result", "--wrap", "sleep 3; echo 42 > result; exit 5", cwd=home)
    home.rmdir()
    until(lambda: "can't write to" in str(shown(both, job)["transfer"]))
    assert b"hint: its output is still at hpc: fed cancel --give-up" in both.edge.fed("cancel", job, wants=4).stderr
    both.edge.fed("cancel", "--give-up", job)
    assert b"was given up; it was at hpc" in both.edge.fed("wait", job, wants=5).stderr
    assert b"no output of it waits" in both.edge.fed("cancel", "--give-up", job, wants=4).stderr
    assert '"what":"give_up"' in "".join(path.read_text() for path in both.edge.folder.rglob("audit*")).replace(" ", "")


ASK = """import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode() + b"\\n" + sys.argv[3].encode())
print(connection.makefile().read())
"""


def ask(both: Pair, **question: object) -> str:
    return ask_with(both, question)


def ask_with(both: Pair, question: Mapping[str, object], data: str = "") -> str:
    """What the edge answers to nobody, whose user this is."""
    command = ["python3", "-c", ASK, str(both.edge.socket), json.dumps(question), data]
    done = subprocess.run(command, user=65534, group=65534, extra_groups=[], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_another_user_sees_and_ends_only_his_own(both: Pair) -> None:
    job = both.edge.submit("--wrap", "true")
    both.edge.fed("wait", job)
    told = ask(both, do="jobs", done=True, everybody=True)
    assert job not in told
    assert json.loads(told)["ok"]["others"] == 0
    for question in ({"do": "show"}, {"do": "cancel"}, {"do": "logs"}, {"do": "wait", "jobs": [job]}):
        assert "no jobs of yours begin with" in ask(both, **{"job": job, **question})
    assert "only an admin may drain" in ask(both, do="drain", on=True)
    assert "does not know 'dance'" in ask(both, do="dance")
    assert "this is no question" in ask(both, do="wait")
    assert b"local:nobody" in (both.edge.folder / "audit.log").read_bytes()


def test_what_a_peer_asked_and_what_was_decided_is_in_the_audit_log(both: Pair) -> None:
    job = both.edge.submit("--stage-out", "out", "--wrap", "sleep 600 > out")
    until(lambda: shown(both, job)["state"] == "running")
    both.edge.fed("signal", "-s", "URG", job)
    both.edge.fed("cancel", job)
    both.edge.fed("wait", job, wants=1)
    lines = [json.loads(line) for line in (both.hpc.folder / "audit.log").read_text().splitlines()]
    told = {one["what"]: (one["who"], one["verdict"], one["why"]) for one in lines if job in one["about"]}
    assert told["job"] == ("edge", True, f"as {GUEST}")
    assert told["signature"][:2] == told["cancel"][:2] == told["signal"][:2] == ("edge", True)
