"""Patterns bring back what a user means by them, and nothing that a link leads to."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation.access import finding
from federation.access.finding import find
from federation.access.paths import MAX_DEPTH, Folder
from federation.errors import Refused


@pytest.fixture
def home(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a").write_bytes(b"secret")
    for name in ("log", "out/a", "out/b.txt", "out/.hidden", "out/deep/c", "out/deep/er/.d", "odd/*", b"odd/\xff"):
        path = job / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (job / "out" / "link").symlink_to(tmp_path / "secret" / "a")
    (job / "out" / "way").symlink_to(tmp_path / "secret")
    (job / "up").symlink_to("..")
    os.mkfifo(job / "out" / "fifo")
    return job


DEEP = (b"out/deep/c", b"out/deep/er/.d")


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ([b"log"], (b"log",)),
        ([b"out/*"], (b"out/a", b"out/b.txt", *DEEP)),
        ([b"out/*.txt", b"out/b*"], (b"out/b.txt",)),
        ([b"out/.*"], (b"out/.hidden",)),
        ([b"out"], (b"out/.hidden", b"out/a", b"out/b.txt", *DEEP)),
        ([b"*/?"], (b"odd/*", b"odd/\xff", b"out/a")),
        ([b"*/deep"], DEEP),
        ([b"odd/[*]"], (b"odd/*",)),
        ([b"odd/\xff"], (b"odd/\xff",)),
        ([b"log/*"], ()),
        ([b"none", b"out/none"], ()),
        ([b"up/*", b"up/secret/a", b"out/way/*", b"out/link", b"out/fifo"], ()),
        ([], ()),
    ],
)
def test_what_a_pattern_means(home: Path, patterns: list[bytes], found: tuple[bytes, ...]) -> None:
    with Folder(home) as folder:
        assert find(folder, patterns, most=100) == found
        for path in found:
            os.close(folder.open_to_read(path))


@pytest.mark.parametrize("pattern", [b"", b"/etc/*", b"../*", b"out/../../*", b"a//b", b"./*"])
def test_patterns_that_lead_out(home: Path, pattern: bytes) -> None:
    with Folder(home) as folder, pytest.raises(Refused):
        find(folder, [b"log", pattern], most=100)


def test_there_is_a_most(home: Path) -> None:
    with Folder(home) as folder:
        assert len(find(folder, [b"out"], most=5)) == 5
        with pytest.raises(Refused, match="more than 4 files match"):
            find(folder, [b"out"], most=4)


def test_there_is_a_most_of_what_is_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_SEEN", 10)
    with Folder(home) as folder:
        assert find(folder, [b"log"], most=100) == (b"log",)
        with pytest.raises(Refused, match="more than 10 names"):
            find(folder, [b"none/x", b"out", b"none"], most=100)


def test_a_tree_that_is_too_deep_ends(home: Path) -> None:
    here = home / "out"
    for _ in range(MAX_DEPTH + 10):
        here = here / "n"
        here.mkdir()
        (here / "f").write_bytes(b"")
    with Folder(home) as folder:
        found = find(folder, [b"out/n"], most=1000)
        assert len(found) == MAX_DEPTH - 2
        os.close(folder.open_to_read(max(found, key=len)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from([b"*", b"out", b"way", b"up", b"?", b"..", b".*", b"[", b"secret", b"a"]), max_size=5))
def test_no_pattern_finds_anything_outside(home: Path, parts: list[bytes]) -> None:
    with Folder(home) as folder:
        try:
            found = find(folder, [b"/".join(parts)], most=100)
        except Refused:
            return
        for path in found:
            real = os.path.realpath(os.fsencode(home) + b"/" + path)
            assert real == os.fsencode(home) + b"/" + path
