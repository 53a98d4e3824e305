"""What a login node prints: whole, or nothing is known."""

import os
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from federation.access.finding import meant
from federation.executors import layout, ssh_scripts
from federation.executors.layout import Claim, Record
from federation.model.token import Key

KEYS = [Key(UUID(int=at), 1) for at in range(1, 5)]
NAMES = [layout.name_of(key) for key in KEYS]
BOOT = "b4d5ec36-575f-434f-8b0c-55f5aa7da201"
TEXT = (
    f"1001|{NAMES[0]}||absent||\n"
    f"1001|{NAMES[1]}||||\n"
    f"1001|{NAMES[2]}|run.17.99.{BOOT}.1700000000||  12| 0\n"
    f"1001|{NAMES[3]}|fence|||\n"
    "all told\n"
)


def test_every_folder_is_told_of() -> None:
    found = ssh_scripts.parse_records(TEXT, {KEYS[2]: 5.0})
    running = Claim(pid=17, start=99, boot=BOOT, at=1700000000.0)
    assert found == {
        KEYS[0]: Record(),
        KEYS[1]: Record(uid=1001),
        KEYS[2]: Record(uid=1001, since=5.0, claim=running, sizes=(12, 0)),
        KEYS[3]: Record(uid=1001, claim=Claim(fence=True)),
    }


@pytest.mark.parametrize("size", range(0, len(TEXT), 7))
def test_an_answer_that_was_cut_off_says_nothing(size: int) -> None:
    with pytest.raises(ValueError):
        ssh_scripts.parse_records(TEXT[:size], {})


def test_hashes_are_in_the_order_of_the_names_whatever_those_are() -> None:
    one, other = "a" * 64, "b" * 64
    assert ssh_scripts.parse_hashes(f"{one}  x\n\\{other}  a\\nb\n".encode()) == [one, other]
    with pytest.raises(ValueError):
        ssh_scripts.parse_hashes(b"sha256sum: error\n")


def test_what_is_there_is_told_from_what_is_not() -> None:
    assert ssh_scripts.parse_laid(f"-\n{'a' * 64}  -\n-\n".encode()) == ["", "a" * 64, ""]
    with pytest.raises(ValueError):
        ssh_scripts.parse_laid(b"-\nsha256sum: error\n")


NAMES_THERE = [
    b"a",
    b"a.dat",
    b"d/x.dat",
    b"d/e/x",
    b".h/x",
    b"\xff\n^",
    b"[x/y]",
    b"a]",
    b"x+(1)|2",
    b"\\",
    b"{1}$",
    b"xb",
    b"x]",
]
PATTERNS = [
    b"*",
    b"?",
    b"*.dat",
    b"d",
    b"d/*.d?t",
    b".h",
    b"\xff*",
    b"[x/y]",
    b"x+(1)|2",
    b"x[!a]",
    b"x[]a]",
    b"\\",
    b"{1}$",
    b"[a",
]


@pytest.mark.parametrize("pattern", [*PATTERNS, None])
def test_find_tells_of_all_that_the_pattern_means_and_of_little_else(tmp_path: Path, pattern: bytes | None) -> None:
    patterns = PATTERNS if pattern is None else [pattern]
    work = tmp_path / NAMES[0] / layout.WORK
    for name in NAMES_THERE:
        path = work / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    argv = ["sh", "-c", ssh_scripts.find(str(tmp_path), KEYS[0], patterns)]
    out = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    found = {one.path for one in ssh_scripts.parse_find(out)}
    wanted = {name for name in NAMES_THERE if meant(name, patterns)}
    assert wanted <= found
    assert found - wanted <= (
        {b".h/x"} if pattern == b"*" else {b"xb", b"x]"} if pattern and b"[" in pattern else set()
    )


def test_patterns_that_are_too_long_for_a_word_narrow_nothing() -> None:
    assert "-regex" not in ssh_scripts.find("/x", KEYS[0], [b"x" * 1000] * 200)


def test_found_files_may_have_any_name() -> None:
    found = ssh_scripts.parse_find(b"3 644 ./a b\n\xff\x000 100600 ./d/.e\0")
    assert [(one.path, one.size, one.mode) for one in found] == [(b"a b\n\xff", 3, 0o644), (b"d/.e", 0, 0o600)]
    with pytest.raises(ValueError):
        ssh_scripts.parse_find(b"x 644 ./a\0")
