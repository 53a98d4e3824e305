"""What the proxy tells the daemon, what it does with what comes back, and how it ends."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.overflow.frames import Acknowledged, Data, Ended, Ping, Refusal, Remark, Signalled, Stream, Welcome
from tests.integration.spank.daemon import FACTS, SPANK, Job, fields, wait

OUT, ERR = Stream.STDOUT, Stream.STDERR
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCONT,
)
ODD = b"and this \0\xff without a newline"
LONG_S = 2.5  # with none there at all, the tests' proxy has written its line a second ago
_KEEP_RUNNING = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_STOP = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
THE_PROXYS = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGSEGV, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT),
}
ENDING = sorted(set(signal.Signals) - _KEEP_RUNNING - _STOP)


def stat_of(pid: int) -> str:
    """The process's letter: R, S, T for stopped, Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def open_pipe() -> Iterator[int]:
    """Its end to read from."""
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        for end in ends:
            os.close(end)


# -- the hello


@pytest.mark.parametrize("name", ["of the user's", "wörk\n[1;2] 'here'" + "x" * 200])
def test_it_tells_of_a_file_that_the_job_reads(job: Job, tmp_path: Path, name: str) -> None:
    (file := tmp_path / name).write_bytes(b"data")
    with file.open("rb") as data:
        job.start(stdin=data)
    assert job.daemon.accept().hello().stdin == os.fsencode(file)


def test_a_job_that_reads_nothing_or_no_file_tells_of_none(job: Job) -> None:
    job.start()
    assert job.daemon.accept().hello().stdin == b""
    job.close()
    job.daemon.listen()
    with open_pipe() as reader:
        job.start(stdin=reader)
    assert job.daemon.accept().hello().stdin == b""


def test_it_tells_what_it_was_handed_and_what_only_it_knows(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "wörk\n[1;2] 'here'"
    folder.mkdir()
    facts = FACTS + fields(
        (3, b"5"), (4, b"2"), (13, b"a b"), (13, b""), (13, b"x\ny\xff"), (14, b"A=1"), (15, b"NOFILE 1024 -1")
    )
    job.start(script=b"#!/bin/sh\necho \xff\x00 end", facts=facts, cwd=folder, umask=0o027)
    hello = job.daemon.accept().hello()
    assert (hello.version, hello.job_id, hello.array_id, hello.task_id, hello.node) == (1, 7, 5, 2, "cloud-1")
    assert hello.script == b"#!/bin/sh\necho \xff\x00 end"
    assert hello.args == (b"a b", b"", b"x\ny\xff")
    assert hello.env == ((b"A", b"1"),)
    assert hello.folder == os.fsencode(folder)
    assert hello.umask == 0o027
    assert (hello.stdout_size, hello.stderr_size, hello.joined, hello.regular) == (0, 0, False, True)


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 3 << 20])
def test_a_script_of_any_size_arrives_whole(job: Job, size: int) -> None:
    script = random.Random(size).randbytes(size)
    job.start(script=script)
    assert job.daemon.accept().hello().script == script


def test_what_was_in_the_files_before_is_told_with_its_size(job: Job) -> None:
    job.out.write_bytes(b"x" * 1234)
    job.err.write_bytes(b"y" * 5)
    job.start(stdout=job.out.open("ab"), stderr=job.err.open("ab"))
    hello = job.daemon.accept().hello()
    assert (hello.stdout_size, hello.stderr_size) == (1234, 5)


def test_one_file_for_both_is_told_whatever_it_is_called(job: Job) -> None:
    job.out.write_bytes(b"")
    job.err.hardlink_to(job.out)
    job.start(stdout=job.out.open("ab"), stderr=job.err.open("ab"))
    assert job.daemon.accept().hello().joined


def test_a_stdout_that_is_no_file_is_told(job: Job) -> None:
    read, write = os.pipe()
    job.start(stdout=write)
    hello = job.daemon.accept().hello()
    assert (hello.regular, hello.stdout_size) == (False, 0)
    os.close(read)
    os.close(write)


def test_what_no_daemon_would_take_ends_with_a_sentence(job: Job) -> None:
    job.start(script=b"x" * (12 << 20))
    assert job.code() == 1
    assert job.err.read_text() == "fed: script, arguments and environment are larger than 12 MiB together\n"


# -- output


@pytest.mark.parametrize("piece", [1, 7, 4096, 100_000])
def test_output_is_written_byte_for_byte(job: Job, piece: int) -> None:
    data = random.Random(piece).randbytes(piece * 300 if piece < 5000 else 2 << 20)
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.relay(OUT, data, piece=piece)
    line.send(Data(stream=ERR, offset=0, data=ODD))
    line.acked(len(data), len(ODD))
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == data
    assert job.err.read_bytes() == ODD


def test_ten_mebibytes_in_both_streams_take_less_than_a_mebibyte_of_memory(plain_job: Job) -> None:
    job, data = plain_job, random.Random(1).randbytes(10 << 20)
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    line.relay(OUT, data)
    for at in range(0, len(data), 1 << 18):
        line.send(Data(stream=ERR, offset=at, data=data[at : at + (1 << 18)]))
        line.acked(len(data), min(at + (1 << 18), len(data)))
    rollup = Path(f"/proc/{proxy.pid}/smaps_rollup").read_text()
    resident = next(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Rss:"))
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == data
    assert job.err.read_bytes() == data
    assert resident < 1024


def test_frames_that_come_in_pieces_are_put_together(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.hello()
    whole = (
        b"W"
        + b"\0\0\0\x10"
        + bytes(16)
        + b"O"
        + b"\0\0\0\x0d"
        + bytes(8)
        + b"hello"
        + b"Z\0\0\0\1?"
        + b"X\0\0\0\5\0\0\0\0\3"
    )
    for at in range(len(whole)):
        line.raw(whole[at : at + 1])
    assert job.code() == 3
    assert job.out.read_bytes() == b"hello"


def test_a_remark_goes_to_stderr_as_one_line(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.hello()
    line.send(Remark(text="no pool has room: waiting"), Ping())
    wait(lambda: job.err.stat().st_size > 0, "the remark")
    line.close()
    line = job.daemon.accept()
    hello = line.welcome()
    assert hello.own == hello.stderr_size == len("fed: no pool has room: waiting\n")
    line.end(0)
    assert job.code() == 0
    assert job.err.read_text() == "fed: no pool has room: waiting\n"


def test_a_refusal_is_said_and_is_a_failure(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.hello()
    line.send(Refusal(text="this job is not yours"))
    assert job.code() == 1
    assert job.err.read_text() == "fed: this job is not yours\n"


# -- losses


def test_after_a_loss_the_stream_goes_on_and_nothing_comes_twice(job: Job) -> None:
    data = bytes(range(256)) * 4000
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=0, data=data[:200_000]))
    wait(lambda: job.out.stat().st_size == 200_000, "the first part")
    line.close()  # with acknowledgements in it that nobody reads
    line = job.daemon.accept()
    line.hello()
    assert (line.told[17], line.told[18]) == (b"200000", b"0")
    assert line.told[9] == b"200000"
    line.send(Welcome(stdout=90_000, stderr=0))  # what this daemon had on record
    line.send(*(Data(stream=OUT, offset=at, data=data[at : at + 50_000]) for at in range(90_000, len(data), 50_000)))
    line.acked(len(data))
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == data


def test_a_daemon_that_is_killed_and_started_again_is_found(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome()
    job.daemon.close()
    line.close()
    job.daemon.path.unlink()
    job.daemon.listen()
    line = job.daemon.accept()
    line.welcome()
    line.end(5)
    assert job.code() == 5


def test_a_new_proxy_of_a_job_begins_where_the_daemon_says(job: Job) -> None:
    """As after the loss of a slurmstepd, with files that are appended to."""
    job.out.write_bytes(b"before|0123")
    job.start(stdout=job.out.open("ab"))
    line = job.daemon.accept()
    hello = line.hello()
    assert hello.stdout_size == 11
    assert 17 not in line.told
    line.send(Welcome(stdout=4, stderr=0), Data(stream=OUT, offset=4, data=b"456"))
    line.acked(7)
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == b"before|0123456"


def test_a_new_proxy_whose_file_was_emptied_writes_it_whole_again(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome(stdout=0)
    line.relay(OUT, b"0123456")
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == b"0123456"


def test_output_with_a_gap_before_it_is_never_written(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=1, data=b"x"))
    assert line.is_closed()
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=0, data=b"yx"), Ended(by_signal=False, value=0))
    assert job.code() == 0
    assert job.out.read_bytes() == b"yx"


def test_a_daemon_that_never_answers_is_told_of_once_and_waited_for(job: Job) -> None:
    job.daemon.close()
    job.daemon.path.unlink()
    job.start()
    wait(lambda: job.err.stat().st_size > 0, "the line")
    job.daemon.listen()
    line = job.daemon.accept()
    hello = line.welcome()
    assert hello.own == hello.stderr_size == job.err.stat().st_size  # the line is no part of the job's stream
    line.end(0)
    assert job.code() == 0
    assert job.err.read_text() == "fed: the daemon does not answer; waiting\n"


@pytest.mark.parametrize("killed", [False, True])
def test_a_daemon_that_has_a_hello_finds_nothing_more_in_the_files(job: Job, *, killed: bool) -> None:
    """It may have written their sizes down, and be slow, or be killed before its welcome."""
    proxy = job.start()
    line = job.daemon.accept()
    line.hello()
    if killed:
        job.daemon.close()
    while _age_s(proxy.pid) < LONG_S:
        if killed:
            time.sleep(0.05)
        else:
            assert line.one() == Ping()
            line.send(Ping())
    if killed:
        job.daemon.listen()
        line = job.daemon.accept()
        assert line.hello().stderr_size == 0
    line.send(Welcome(stdout=0, stderr=0))
    line.end(0)
    assert job.code() == 0
    assert job.err.read_bytes() == b""


def test_a_daemon_that_falls_silent_is_called_anew(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome()
    assert line.one() == Ping()
    line.send(Ping())
    assert line.one() == Ping()
    assert line.is_closed()
    line = job.daemon.accept()
    line.welcome()
    line.end(0)
    assert job.code() == 0


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_is_no_daemon(job: Job, seed: int) -> None:
    noise = random.Random(seed)
    job.start()
    for _ in range(3):
        line = job.daemon.accept()
        line.hello()
        kind = bytes([noise.choice(b"WOEMXP\0\xff")])
        size = noise.choice([0, 3, 4, 8, 16, 1 << 20, (1 << 32) - 1])
        with contextlib.suppress(ConnectionError):
            line.raw(kind + size.to_bytes(4, "big") + noise.randbytes(noise.randrange(100)))
        line.close()
    line = job.daemon.accept()
    line.welcome()
    line.end(0)
    assert job.code() == 0


# -- the end


def test_every_exit_code_is_the_jobs(plain_job: Job) -> None:
    for code in range(256):
        plain_job.start()
        line = plain_job.daemon.accept()
        line.welcome()
        line.end(code)
        assert plain_job.code() == code


def test_every_signal_that_ends_a_job_is_the_jobs(plain_job: Job) -> None:
    for number in ENDING:
        plain_job.start()
        line = plain_job.daemon.accept()
        line.welcome()
        line.end(number, by_signal=True)
        assert plain_job.code() == -number
    assert not list(plain_job.folder.glob("core*"))


def test_a_signal_that_ends_nobody_is_an_exit_code(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.end(signal.SIGSTOP, by_signal=True)
    assert job.code() == 128 + signal.SIGSTOP


def test_all_output_is_acknowledged_before_the_end(job: Job) -> None:
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=0, data=b"x" * 70_000), Ended(by_signal=False, value=9))
    line.acked(70_000)
    assert job.code() == 9


# -- signals


@pytest.mark.parametrize("number", FORWARDED)
def test_a_signal_of_slurmstepds_is_told_within_a_second(job: Job, number: int) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    began = time.monotonic()
    proxy.send_signal(number)
    assert line.signalled() == Signalled(number=number, from_stepd=True)
    assert time.monotonic() - began < 1
    line.end(0)
    assert job.code() == 0


def test_every_signal_that_a_job_could_catch_is_told_and_ends_nothing_here(job: Job) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    for number in sorted(signal.valid_signals() - THE_PROXYS - {signal.SIGTSTP}):
        proxy.send_signal(number)
        assert line.signalled() == Signalled(number=number, from_stepd=True)
    line.end(0)
    assert job.code() == 0


def test_the_job_ends_by_its_own_signal_though_another_one_has_just_come(tmp_path: Path) -> None:
    late, program = tmp_path / "late.c", tmp_path / "proxy"
    late.write_text(
        "#include <signal.h>\n#include <sys/resource.h>\nint __wrap_setrlimit(int, const struct rlimit *);\n"
        "int __wrap_setrlimit(int what, const struct rlimit *limit)\n"
        "{\n    (void)what, (void)limit;\n    return raise(SIGUSR1); /* the end is under way */\n}\n"
    )
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wl,--wrap=setrlimit", "-o", program, SPANK / "proxy.c", late], check=True, timeout=60
    )
    job = Job(tmp_path, program)
    job.start()
    line = job.daemon.accept()
    line.welcome()
    line.end(signal.SIGTERM, by_signal=True)
    assert job.code() == -signal.SIGTERM
    job.close()


def test_a_signal_of_anybody_elses_is_told_as_such(job: Job) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    subprocess.run(["/bin/kill", "-TERM", str(proxy.pid)], check=True)
    assert line.signalled() == Signalled(number=signal.SIGTERM, from_stepd=False)
    assert proxy.poll() is None


def test_signals_before_the_first_welcome_and_during_a_loss_are_told_in_order(job: Job) -> None:
    job.daemon.close()
    proxy = job.start()
    wait(lambda: Path(f"/proc/{proxy.pid}/comm").read_text().startswith("vgpu-proxy"), "the proxy")
    wait(lambda: _blocks(proxy.pid, signal.SIGUSR1), "the proxy's mask")
    proxy.send_signal(signal.SIGUSR1)
    job.daemon.listen()
    line = job.daemon.accept()
    line.welcome()
    assert line.signalled().number == signal.SIGUSR1
    line.send(Data(stream=OUT, offset=0, data=b"x"))
    line.acked(1)  # so it has the answer before this, too
    line.close()
    proxy.send_signal(signal.SIGTERM)
    line = job.daemon.accept()
    line.welcome()
    assert line.signalled().number == signal.SIGTERM


def test_a_signal_that_no_daemon_has_confirmed_is_told_again(job: Job) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    proxy.send_signal(signal.SIGTERM)
    assert isinstance(line.next(), Signalled)
    line.close()
    line = job.daemon.accept()
    line.welcome()
    assert line.signalled().number == signal.SIGTERM
    line.close()
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=0, data=b"x"))
    assert line.next() == Acknowledged(stdout=1, stderr=0)  # and not once more


def test_a_job_that_is_to_stop_stops_when_the_daemon_knows(job: Job) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    proxy.send_signal(signal.SIGTSTP)
    assert line.signalled().number == signal.SIGTSTP
    wait(lambda: stat_of(proxy.pid) == "T", "the stop")
    proxy.send_signal(signal.SIGCONT)
    assert line.signalled().number == signal.SIGCONT
    line.end(0)
    assert job.code() == 0


def test_a_job_stops_without_its_daemon_too(job: Job) -> None:
    proxy = job.start()
    line = job.daemon.accept()
    line.welcome()
    job.daemon.close()
    line.close()
    proxy.send_signal(signal.SIGTSTP)
    wait(lambda: stat_of(proxy.pid) == "T", "the stop")
    proxy.send_signal(signal.SIGCONT)
    job.daemon.listen()
    line = job.daemon.accept()
    line.welcome()
    assert [line.signalled().number, line.signalled().number] == [signal.SIGTSTP, signal.SIGCONT]


def _blocks(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(row.split()[1] for row in status.splitlines() if row.startswith("SigBlk:"))
    return bool(int(blocked, 16) >> (number - 1) & 1)


def _age_s(pid: int) -> float:
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


# -- the job's files


def test_a_reader_who_is_slow_holds_back_output_and_no_signal(job: Job) -> None:
    data = random.Random(2).randbytes(220_000)
    read, write = os.pipe()
    proxy = job.start(stdout=write)
    os.close(write)
    line = job.daemon.accept()
    line.welcome()
    line.send(*(Data(stream=OUT, offset=at, data=data[at : at + 20_000]) for at in range(0, len(data), 20_000)))
    acked = 0
    while acked < 60_000:  # a pipe's room is 64 KiB
        got = line.next()
        assert isinstance(got, Acknowledged)
        acked = got.stdout
    proxy.send_signal(signal.SIGUSR1)
    while not isinstance(got := line.next(), Signalled):
        assert isinstance(got, Acknowledged)
        assert got.stdout < 70_000
    line.end(0)
    with os.fdopen(read, "rb") as reader:
        assert reader.read() == data
    assert job.code() == 0


def test_output_that_nobody_can_read_any_more_does_not_end_the_job(job: Job) -> None:
    read, write = os.pipe()
    os.close(read)
    job.start(stdout=write)
    os.close(write)
    line = job.daemon.accept()
    line.welcome()
    line.send(Data(stream=OUT, offset=0, data=b"x" * 100_000), Data(stream=ERR, offset=0, data=b"err"))
    line.acked(100_000, 3)
    line.end(4)
    assert job.code() == 4
    assert job.err.read_text() == "fed: the job's output can't be written any more, and is dropped: Broken pipe\nerr"


def test_a_full_disk_holds_output_back_until_there_is_room(job: Job, tmp_path: Path) -> None:
    small, data = tmp_path / "small", random.Random(3).randbytes(300_000)
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        filler = small / "filler"
        filler.write_bytes(bytes(128 << 10))
        proxy = job.start(stdout=(small / "job.out").open("wb"))
        line = job.daemon.accept()
        line.welcome()
        line.send(Data(stream=OUT, offset=0, data=data[:200_000]))
        wait(lambda: b"No space left" in job.err.read_bytes(), "the sentence")
        proxy.send_signal(signal.SIGTERM)
        while not isinstance(got := line.next(), Signalled):
            assert isinstance(got, Acknowledged)
            assert got.stdout <= 128 << 10
        line.end(6)
        filler.unlink()
        assert job.code() == 6
        assert (small / "job.out").read_bytes() == data[:200_000]
        assert job.err.read_text().count("\n") == 1
    finally:
        subprocess.run(["umount", small], check=True)


def test_what_becomes_of_output_is_not_told_in_the_output(job: Job) -> None:
    """One file for both, where stdout may be written no more, and stderr could."""
    job.out.write_bytes(b"." * 4096)
    out, err = job.out.open("r+b"), job.out.open("r+b")
    out.seek(4096)
    proxy = job.start(stdout=out, stderr=err)
    line = job.daemon.accept()
    assert line.welcome().joined
    resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    line.send(Data(stream=OUT, offset=0, data=b"x"))
    line.acked(1)
    line.end(0)
    assert job.code() == 0
    assert job.out.read_bytes() == b"." * 4096


# -- its parent


def test_it_dies_with_its_slurmstepd(job: Job) -> None:
    """In its place: a process that starts the proxy, says its number and waits."""
    job.script.write_bytes(b"")
    job.facts.write_bytes(FACTS)
    stepd = (
        "import os, subprocess, sys\n"
        "argv = [a if a != 'PARENT' else str(os.getpid()) for a in sys.argv[1:]]\n"
        "p = subprocess.Popen(argv, env={'FACTS': argv.pop(), 'SCRIPT': argv.pop()})\n"
        "print(p.pid, flush=True)\n"
        "p.wait()\n"
    )
    shell = [*job.command()]
    shell[-2] = "PARENT"
    parent = subprocess.Popen(
        [sys.executable, "-c", stepd, *shell, str(job.script), str(job.facts)], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    line = job.daemon.accept()
    line.welcome()
    parent.kill()
    assert line.is_closed()
    wait(lambda: not Path(f"/proc/{pid}").exists() or stat_of(pid) == "Z", "its end")
    parent.wait()
    parent.stdout.close()


def test_it_does_not_begin_after_its_slurmstepd_has_died(job: Job) -> None:
    job.start(parent=1)
    assert job.code() == 1


def test_nobody_else_can_start_it(job: Job) -> None:
    done = subprocess.run([job.program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "vgpu-proxy: only Slurm's gateway plugin can start this\n")
