"""The catalogue's text, and the file it lies in."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin import catalogue_file
from slurm_plugin.catalogue import Exclusive, NodeFacts, parse, render, shapes
from slurm_plugin.errors import ConfigError
from tests.cases.pool import laid_out, pool

TEXT = render(pool())


def test_what_is_rendered_is_read_back() -> None:
    for made in (
        pool(),
        replace(pool(), default="", operators=(), exclusive=Exclusive.ALLOW, shapes=(), nodes={}, aliases={}),
    ):
        assert parse(render(made)) == made


def test_nodes_of_one_build_share_a_shape() -> None:
    one = NodeFacts(cpus=4, memory_mib=10, most={"a": 1, "b": 0})
    other = NodeFacts(cpus=4, memory_mib=11, most={"a": 1})
    seen, nodes = shapes({"n1": one, "n2": other, "n3": replace(one, most={"a": 1})})
    assert nodes == {"n1": 1, "n2": 2, "n3": 1}
    assert [shape.most for shape in seen] == [{"a": 1}, {"a": 1}]


def test_layouts_that_make_nothing_are_no_unknown_ones() -> None:
    facts = NodeFacts(cpus=8, memory_mib=64, most={"m10": 7})
    found, of = shapes({"n1": facts, "n2": replace(facts, made={}), "n3": replace(facts, made={"m10": 0})})
    assert [shape.made for shape in found] == [None, {}]
    assert of == {"n1": 1, "n2": 2, "n3": 2}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vgpu-catalogue 1", "vgpu-catalogue 2"),
        ("pool hpc", "pool  hpc"),
        ("pool hpc", "pool hpc x"),
        ("default 1g.10gb", "default 9g.9gb"),
        ("exclusive refuse", "exclusive maybe"),
        ("exclusive refuse", "exclusive allow\nexclusive allow"),
        ("alias tiny 1g.10gb", "alias tiny none"),
        ("alias tiny 1g.10gb", "alias small 1g.10gb"),
        ("class m20 memory 20 2", "class m20 memory - 2"),
        ("class 2g.20gb exact - 2", "class 2g.20gb exact 3 2"),
        ("class 2g.20gb exact - 2 2g.20gb", "class 2g.20gb exact - 2"),
        ("class m20 memory", "class m10 memory"),
        ("shape 1 64", "shape 2 64"),
        ("shape 1 64", "shape 1 x"),
        ("node n[1-2] 1", "node n[1-2] 7"),
        ("node n[1-2] 1", "node n[1-3] 1"),
        ("node n[1-2] 1", "node n[1-2],n1 1"),
        ("node n[1-2] 1", "node n[1-2 1"),
        ("node n[1-2] 1", "node n[1-5001] 1"),
        ("node n[1-2] 1", "note n[1-2] 1"),
        ("operators 0 64030", "operators root"),
        ("m20=8", "m20=-8"),
        ("m20=8", "m20"),
    ],
)
def test_a_line_that_is_wrong_makes_the_whole_wrong(old: str, new: str) -> None:
    assert old in TEXT
    lines = TEXT.replace(old, new, 1).split("\n")[:-2]
    with pytest.raises(ConfigError):
        parse("\n".join([*lines, f"end {len(lines)}", ""]))


@pytest.mark.parametrize(
    "line", ["made 1", "made 9 m20=1", "made 2 m20", "made x m20=1", "made", "made 2 m20=-1", "made 2 m20=1=2"]
)
def test_what_layouts_make_is_told_once_and_of_a_shape_that_was(line: str) -> None:
    text = render(laid_out())
    assert parse(text) == laid_out()
    lines = text.split("\n")[:-2]
    at = lines.index(next(one for one in lines if one.startswith("node ")))
    with pytest.raises(ConfigError, match="not understood"):
        parse("\n".join([*lines[:at], line, *lines[at:], f"end {len(lines) + 1}", ""]))


def test_many_nodes_are_a_few_short_lines() -> None:
    nodes = {f"gpu-{number:05}": 1 for number in range(1, 12_501)} | {"login": 2, "n9": 2, "n10": 2}
    made = replace(pool(), nodes=nodes)
    text = render(made)
    assert parse(text) == made
    assert len(text) < 4096
    with pytest.raises(ConfigError, match="host list"):
        render(replace(pool(), nodes={"n1,n2": 1}))


def test_a_reader_may_take_fewer_nodes_than_a_catalogue_can_have() -> None:
    text = render(replace(pool(), nodes={f"gpu-{number}": 1 for number in range(1, 2001)}))
    assert len(parse(text, most_nodes=2000).nodes) == 2000
    for most in (1999, 1000, 999, 1):
        with pytest.raises(ConfigError, match="not understood"):
            parse(text, most_nodes=most)


def test_a_name_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        catalogue_file.write(tmp_path / "catalogue", replace(pool(), pool="two words"))
    assert list(tmp_path.iterdir()) == []


def test_a_catalogue_is_written_whole_for_everybody_and_only_when_new(tmp_path: Path) -> None:
    path = tmp_path / "catalogue"
    old = os.umask(0o077)
    try:
        assert catalogue_file.write(path, pool())
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644
    assert catalogue_file.read(path) == pool()
    first = path.stat().st_ino
    assert not catalogue_file.write(path, pool())
    assert path.stat().st_ino == first
    assert catalogue_file.write(path, replace(pool(), pool="other"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["catalogue"]


def test_a_crash_before_the_rename_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalogue"
    catalogue_file.write(path, pool())

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        catalogue_file.write(path, replace(pool(), pool="other"))
    assert catalogue_file.read(path) == pool()
    assert [entry.name for entry in tmp_path.iterdir()] == ["catalogue"]


@pytest.mark.parametrize("data", [None, b"", TEXT.encode()[:-9], b"\xff\xfe", TEXT.encode() + b"\xc3\xa9"])
def test_a_file_that_is_none_is_an_error(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "catalogue"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError):
        catalogue_file.read(path)
