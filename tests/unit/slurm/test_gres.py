import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SlurmError
from slurm_plugin.ports import GresItem
from slurm_plugin.slurm.gres import MAX_ITEMS, format_gres, parse_gres


def item(name: str, gres_type: str = "", count: int = 1) -> GresItem:
    return GresItem(name=name, type=gres_type, count=count)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
        ("gres:none", ()),
        ("vgpu", (item("vgpu"),)),
        ("vgpu:4", (item("vgpu", count=4),)),
        ("vgpu=1", (item("vgpu"),)),
        ("gres:vgpu:1", (item("vgpu"),)),
        ("gres/vgpu:1", (item("vgpu"),)),
        ("gres:gres:vgpu:1", (item("vgpu"),)),
        ("vgpu:1g.10gb+me:2", (item("vgpu", "1g.10gb+me", 2),)),
        ("vgpu:2g.20gb", (item("vgpu", "2g.20gb"),)),
        ("vgpu:m20", (item("vgpu", "m20"),)),
        ("vgpu:1K", (item("vgpu", count=1024),)),
        ("vgpu:pad:2k", (item("vgpu", "pad", 2048),)),
        ("lic:no_consume:4G", (item("lic", count=4 << 30),)),
        (
            "gpu:ampere:6(S:0-1),gpu:1g.10gb:28(S:0-1)",
            (item("gpu", "ampere", 6), item("gpu", "1g.10gb", 28)),
        ),
        ("gpu:a100:2(IDX:0,2),vgpu:0", (item("gpu", "a100", 2), item("vgpu", count=0))),
        ("gpu:0(IDX:N/A),vgpu:1g.10gb:2", (item("gpu", count=0), item("vgpu", "1g.10gb", 2))),
        ("gres/vgpu:m20:1,gres/vgpu_mem:2", (item("vgpu", "m20"), item("vgpu_mem", count=2))),
        ("vgpu:a\n1 0:1", (item("vgpu", "a\n1 0"),)),
    ],
)
def test_every_form_slurm_prints(text: str, items: tuple[GresItem, ...]) -> None:
    assert parse_gres(text) == items


@pytest.mark.parametrize("text", ["vgpu:a:b:1", "vgpu:a:b", ":1", "vgpu:", "vgpu::1", "gres:vgpu:x:y"])
def test_what_is_no_gres_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError):
        parse_gres(text)


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(SlurmError, match="longer"):
        parse_gres(",".join(["a"] * (MAX_ITEMS + 1)))


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("none", "gres", "no_consume")
)
TYPES = st.one_of(
    st.just(""), st.from_regex(r"[a-z][a-z0-9.+_-]{1,8}", fullmatch=True).filter(lambda t: t != "no_consume")
)


@given(st.lists(st.builds(item, NAMES, TYPES, st.integers(0, 10**6))))
def test_what_we_write_is_what_we_read(items: list[GresItem]) -> None:
    assert parse_gres(format_gres(items)) == tuple(items)


@given(st.text())
def test_any_text_is_items_or_a_slurm_error(text: str) -> None:
    with contextlib.suppress(SlurmError):
        assert all(one.name for one in parse_gres(text))
