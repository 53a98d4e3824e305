"""pool.yaml: what it may say, and how a wrong one is told."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin import config_classes
from slurm_plugin.catalogue import Class, Exclusive
from slurm_plugin.classes import NamedClass, Products, build
from slurm_plugin.config import load_pool, parse_pool
from slurm_plugin.config_schema import MAX_CLASSES
from slurm_plugin.document import FILE_BYTES
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.products import load_products
from slurm_plugin.pool import Mode, QueueReader, Share, StuckProlog

EXAMPLE = Path(__file__).parents[3] / "configs" / "pool.yaml"
SHORT = "version: 1\npool: hpc\npartitions: [gpu]\nnodes:\n  - hosts: n[1-2]\n"


def test_example_is_read_and_shows_every_key() -> None:
    pool = load_pool(EXAMPLE)
    assert pool.hosts == ("n1", "n2", "n3", "n4")
    assert pool.classes["small"] == NamedClass(memory_gb=10)
    assert pool.classes["half"] == NamedClass(fraction=2)
    assert pool.classes["big"].profiles == ("3g.40gb", "4g.40gb")
    assert pool.aliases == {"tiny": "1g.10gb"}
    assert pool.groups[0].shares == (Share(layout={"3g.40gb": 1, "1g.10gb": 4}),)
    assert (pool.groups[0].product, pool.groups[0].count) == ("h100-80gb", 4)
    assert [share.share for share in pool.groups[1].shares] == [2, 1]
    assert pool.groups[1].gpus == (0, 1, 2, 3)
    assert (pool.exclusive, pool.mode, pool.stuck_prolog) == (Exclusive.REFUSE, Mode.MANAGE, StuckProlog.REQUEUE)
    told = parse_pool(SHORT + "policy: {stuck_prolog: report}\n")
    assert told.stuck_prolog is StuckProlog.REPORT
    assert pool.notices
    assert not parse_pool(SHORT + "policy: {notices: off}\n").notices


def test_short_file_gets_the_defaults() -> None:
    pool = parse_pool(SHORT)
    assert (pool.gres.name, pool.gres.total, pool.gres.memory, pool.gres.pad) == ("vgpu", 1000, "vgpu_mem", "pad")
    assert pool.wait_partition == "vgpu-wait"
    assert pool.groups[0].shares == ()
    assert pool.groups[0].takes(63)
    assert pool.controller.dial == "127.0.0.1:6820"


def test_the_queue_is_read_with_squeue_unless_pyslurm_is_asked_for() -> None:
    assert parse_pool(SHORT).controller.queue_reader is QueueReader.SQUEUE
    assert parse_pool(SHORT + "controller: {queue_reader: pyslurm}\n").controller.queue_reader is QueueReader.PYSLURM
    with pytest.raises(ConfigError, match=r"pool\.yaml:6: controller\.queue_reader: must be 'squeue' or 'pyslurm'"):
        parse_pool(SHORT + "controller: {queue_reader: rest}\n")


@pytest.mark.parametrize(
    ("listen", "dial"), [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:7", "[::1]:7"), ("10.0.0.1:7", "10.0.0.1:7")]
)
def test_where_a_client_on_the_same_host_dials(listen: str, dial: str) -> None:
    assert parse_pool(SHORT + f"controller: {{listen: '{listen}'}}\n").controller.dial == dial
    assert parse_pool(SHORT + f"controller: {{listen: '{listen}', address: 'c:9'}}\n").controller.dial == "c:9"


WRONG = {
    "empty": ("", "the file is empty"),
    "not yaml": ("version: [1\n", r"pool\.yaml:2: not YAML"),
    "a list": ("- 1\n", "pool.yaml:1"),
    "version": (SHORT.replace("version: 1", "version: 2"), r"pool\.yaml:1: version"),
    "misspelt": (SHORT + "polcy: {}\n", r"pool\.yaml:6: unknown key 'polcy'; did you mean 'policy'\?"),
    "misspelt, required": (SHORT.replace("partitions", "partition"), r"pool\.yaml:3: unknown key 'partition'"),
    "misspelt in a node": (
        SHORT + "    gpu: all\n",
        r"pool\.yaml:6: unknown key 'nodes\.0\.gpu'; did you mean 'gpus'\?",
    ),
    "unlike anything": (SHORT + "zzz: 1\n", r"unknown key 'zzz' \(known: version, pool"),
    "more classes than it may": (
        SHORT + "classes:\n" + "".join(f"  c{nth}: {{memory: 10gb}}\n" for nth in range(MAX_CLASSES + 1)),
        r"pool\.yaml:6: classes: must have 256 at the most",
    ),
    "more aliases than it may": (
        SHORT + "aliases:\n" + "".join(f"  a{nth}: 10gb\n" for nth in range(MAX_CLASSES + 1)),
        r"pool\.yaml:6: aliases: must have 256 at the most",
    ),
    "twice": (SHORT + "pool: other\n", r"pool\.yaml:6: 'pool' is given twice \(first on line 2\)"),
    "no host": (SHORT.replace("n[1-2]", "''"), r"pool\.yaml:5: no host is named"),
    "bad host": (SHORT.replace("n[1-2]", "n[1-"), r"pool\.yaml:5"),
    "path as host": (SHORT.replace("n[1-2]", "../n1"), r"'\.\./n1' is no host name"),
    "host twice": (SHORT + "  - hosts: n2\n", r"pool\.yaml:6: node n2 is given twice"),
    "total": (SHORT + "gres: {total: 2048}\n", r"pool\.yaml:6: gres\.total: a multiple of 1024"),
    "number as text": (SHORT + "gres: {total: '1000'}\n", r"gres\.total"),
    "class of nothing": (SHORT + "classes: {small: {}}\n", r"pool\.yaml:6: classes\.small: give exactly one"),
    "class of two": (SHORT + "classes: {s: {memory: 10gb, fraction: 1/2}}\n", "give exactly one"),
    "class of what": (SHORT + "classes: {s: {memory: lots}}\n", "'lots' is not an amount of memory"),
    "layout and mix": (
        SHORT + "    layout: {1g.10gb: 7}\n    mix: [{layout: {1g.10gb: 7}}]\n",
        "say either layout or mix",
    ),
    "unknown profile": (
        SHORT + "    layout: {2g.10bg: 1}\n",
        r"pool\.yaml:6: no GPU has a profile '2g\.10bg'; did you mean",
    ),
    "profile of another product": (
        SHORT + "    product: h100-80gb\n    layout: {2g.10gb: 1}\n",
        r"pool\.yaml:7: no profile '2g\.10gb' on this GPU",
    ),
    "impossible layout": (SHORT + "    product: h100-80gb\n    layout: {3g.40gb: 3}\n", "does not fit one GPU"),
    "impossible on A100-40": (
        SHORT + "    product: a100-40gb\n    layout: {1g.10gb: 4, 1g.5gb: 3}\n",
        "does not fit one GPU",
    ),
    "impossible in a mix": (
        SHORT + "    mix:\n      - layout: {1g.10gb: 7}\n      - layout: {7g.80gb: 2}\n",
        r"pool\.yaml:8: .*does not fit one GPU",
    ),
    "unknown product": (
        SHORT + "    product: h1000\n    layout: {1g.10gb: 1}\n",
        r"pool\.yaml:6: no GPU product 'h1000'",
    ),
    "GPU beyond the count": (
        SHORT + "    gpus: [0, 4]\n    count: 4\n",
        r"gpus has 4, and a node with count 4 has 0 to 3",
    ),
    "GPU twice": (SHORT + "    gpus: [0, 0]\n", r"gpus names 0 twice"),
    "profile in capitals": (SHORT + "    layout: {2G.20GB: 1}\n", "did you mean 2g.20gb"),
    "class of no GPU": (SHORT + "classes: {huge: {memory: 999gb}}\n", r"pool\.yaml:6: classes\.huge: no GPU"),
    "class of a profile that is none": (
        SHORT + "classes: {big: {profiles: [9g.90gb]}}\n",
        r"pool\.yaml:6: classes\.big: no GPU of this pool has the profile '9g\.90gb'",
    ),
    "class of another product": (
        SHORT + "    product: h100-80gb\nclasses: {big: {profiles: [3g.20gb]}}\n",
        r"pool\.yaml:7: classes\.big: no GPU of this pool has the profile '3g\.20gb'",
    ),
    "class called pad": (SHORT + "classes: {pad: {memory: 10gb}}\n", "'pad' means something else"),
    "padding called as a class by memory": (
        SHORT + "gres: {pad: m20}\n",
        r"pool\.yaml:6: gres\.pad: .*what a class is",
    ),
    "padding called as a class by share": (SHORT + "gres: {pad: Q4}\n", r"pool\.yaml:6: gres\.pad: .*what a class is"),
    "padding called as a class": (
        SHORT + "gres: {pad: fill}\nclasses: {fill: {memory: 10gb}}\n",
        "gres.pad must be neither a class nor an alias",
    ),
    "padding called as an alias": (
        SHORT + "gres: {pad: fill}\naliases: {fill: 10gb}\n",
        "gres.pad must be neither a class nor an alias",
    ),
    "class called as memory": (SHORT + "classes: {20gb: {memory: 10gb}}\n", "'20gb' is no name for a class"),
    "class with a blank": (SHORT + "classes: {Small Job: {memory: 10gb}}\n", "'Small Job' is no name for a class"),
    "default class of nothing": (SHORT + "default_class: tiny\n", r"pool\.yaml:6: default_class: .*tiny"),
    "alias of nothing": (SHORT + "aliases: {tiny: 1g.10bg}\n", r"pool\.yaml:6: aliases\.tiny: .*1g\.10bg"),
    "alias of itself": (SHORT + "aliases: {tiny: tiny}\n", r"pool\.yaml:6: aliases\.tiny: "),
    "no count": (SHORT + "    layout: {1g.10gb: 0}\n", r"pool\.yaml:6"),
    "relative path": (SHORT + "controller: {state_dir: here}\n", "here must be an absolute path"),
    "no port": (SHORT + "controller: {listen: here}\n", "'here' is not host:port"),
    "wait partition": (SHORT + "wait_partition: gpu\n", "wait_partition must not be one of partitions"),
    "hostile name": (SHORT.replace("pool: hpc", 'pool: "a\\nb"'), r"pool\.yaml:2: pool: "),
    "too many hosts": (SHORT + "  - hosts: m[1-99999]\n", r"pool\.yaml:6: .*too many hosts"),
    "no text for hosts": (SHORT.replace("n[1-2]", "[n1]"), r"pool\.yaml:5: nodes\.0\.hosts"),
    "bomb": (
        "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
        "more than 100000 parts",
    ),
    "holds itself": ("a: &a {b: *a}\n", "nested too deep"),
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "pool.yaml:1: must be keys with values (`key: value`)"),
        ("version: 1\n", "pool.yaml:1: pool: this key is missing"),
        (SHORT + "    count: -1\n", "pool.yaml:6: nodes.0.count: must be 1 or more"),
        (SHORT + "    count: a\n", "pool.yaml:6: nodes.0.count: must be a whole number"),
        (SHORT + "    gpus: [a]\n", "pool.yaml:6: nodes.0.gpus.0: must be a whole number"),
        (SHORT + "    gpus: some\n", "pool.yaml:6: nodes.0.gpus: must be 'all' or must be a list"),
        (SHORT + "    mix: 4\n", "pool.yaml:6: nodes.0.mix: must be a list"),
        (SHORT + "policy: {mode: look}\n", "pool.yaml:6: policy.mode: must be 'manage' or 'observe'"),
        (SHORT + "classes: {small: 5}\n", "pool.yaml:6: classes.small: must be keys with values (`key: value`)"),
        (SHORT.replace("[gpu]", "[]"), "pool.yaml:3: partitions: must have 1 or more"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_who_writes_the_file(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_pool(text)
    assert str(refused.value) == said


WHOLE = """
version: 1
pool: hpc
partitions: [gpu]
wait_partition: wait
gres: {name: vgpu, total: 1000, pad: pad, memory: vgpu_mem}
default_class: small
classes: {small: {memory: 10gb}, half: {fraction: 1/2}, big: {profiles: [3g.40gb]}}
aliases: {s: small}
nodes:
  - {hosts: "n[1-2]", product: h100-80gb, count: 4, gpus: [0, 1], layout: {3g.40gb: 2}, follow: queue}
  - {hosts: n3, gpus: all, mix: [{layout: {1g.10gb: 7}, share: 1}]}
policy: {exclusive: refuse, mode: manage, stuck_prolog: requeue, duplicate_jobid: resume, notices: true}
planning:
  {follow: queue, order: priority, batch_window_s: 1, hysteresis_s: 2, changing: {node: 1, pool: 2},
   guarantees: {account a: at least 1 of small}, quiet: ["08:00-18:00"],
   classes: {small: {products: [h100-80gb], nodes: n1}}}
controller:
  {listen: "0.0.0.0:1", address: "a:2", user: root, state_dir: /a, catalogue: /b, slurm_conf: /c, slurm_bin: /d,
   munge_socket: /e, queue_reader: squeue}
"""
SCALARS = st.sampled_from([None, True, -1, 0, 1.5, float("inf"), 10**30, "", "x", "99:99", "2026-01-01"])
ODD = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=1) | st.dictionaries(st.sampled_from("ax"), one, max_size=1)
)
NOT_OURS = re.compile(r"Input should|Value error|[Uu]nable to parse|instance of|pydantic|\d\.0 or")


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(part, (*path, key))


def with_odd(data: Any, path: tuple[str | int, ...], odd: object) -> Any:
    if not path:
        return odd
    changed: Any = dict(data) if isinstance(data, dict) else list(data)
    changed[path[0]] = with_odd(data[path[0]], path[1:], odd)
    return changed


def refusal(text: str) -> str:
    """Empty for a file that is right."""
    try:
        parse_pool(text)
    except ConfigError as error:
        return str(error)
    return ""


@settings(deadline=None)
@given(path=st.sampled_from(list(places(yaml.safe_load(WHOLE)))), odd=ODD)
def test_whatever_stands_anywhere_is_right_or_told_with_its_line_in_our_words(
    path: tuple[str | int, ...], odd: object
) -> None:
    said = refusal(yaml.safe_dump(with_odd(yaml.safe_load(WHOLE), path, odd)))
    assert re.match(r"$|pool\.yaml(:\d+)?: ", said)
    assert not NOT_OURS.search(said)


def test_the_file_that_is_spoiled_is_right() -> None:
    assert parse_pool(WHOLE).hosts == ("n1", "n2", "n3")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_told_with_its_line(name: str) -> None:
    text, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        parse_pool(text)


@pytest.mark.parametrize(
    "more",
    [
        "default_class: 1/4\naliases: {quarter: 1/4, most: 80gb}\n",
        "classes: {half: {fraction: 1/2}, any: {profiles: [3g.40gb, 3g.20gb]}}\naliases: {h: half, a: any}\n",
        "default_class: half\nclasses: {half: {fraction: 1/2}}\n",
    ],
)
def test_what_some_gpu_can_serve_is_right_until_the_agents_tell(more: str) -> None:
    assert parse_pool(SHORT + more).classes.keys() <= {"half", "any"}


def test_further_mistakes_are_counted() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pool(SHORT + "polcy: 1\nmode: 2\n")
    assert caught.value.hint == "1 more mistake follows"


def test_mixed_order_of_3g_and_4g_is_a_layout() -> None:
    parse_pool(SHORT + "    product: a100-40gb\n    layout: {3g.20gb: 1, 4g.20gb: 1}\n")


def test_layout_must_fit_one_product_when_none_is_named() -> None:
    parse_pool(SHORT + "    layout: {1g.18gb: 7}\n")


def test_file_that_cant_be_read(tmp_path: Path) -> None:
    binary, long = tmp_path / "binary.yaml", tmp_path / "long.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    long.write_text("#" * (FILE_BYTES + 1))
    for path, said in (
        (tmp_path / "none.yaml", f"no such file: {tmp_path}/none.yaml"),
        (tmp_path, f"can't read {tmp_path}: Is a directory"),
        (binary, f"can't read {binary}: it is not a text in UTF-8"),
        (long, f"{long} is longer than {FILE_BYTES} bytes"),
    ):
        with pytest.raises(ConfigError) as told:
            load_pool(path)
        assert str(told.value) == said


def test_a_models_classes_are_built_once_however_many_the_admin_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may have any file planned."""
    built: list[Products] = []

    def counted(products: Products, named: Mapping[str, NamedClass]) -> tuple[Class, ...]:
        built.append(products)
        return build(products, named)

    monkeypatch.setattr(config_classes, "build", counted)
    names = "".join(f"  c{nth}: {{memory: 10gb}}\n" for nth in range(MAX_CLASSES))
    parse_pool(f"{SHORT}classes:\n{names}aliases: {{tiny: c1}}\n")
    assert 1 <= len(built) <= 1 + len(load_products())
