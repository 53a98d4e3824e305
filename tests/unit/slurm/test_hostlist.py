import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[1-2,5],m7", ("n1", "n2", "n5", "m7")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("n[001]", ("n001",)),
        ("r[1-2]n[1-2]-ib", ("r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib")),
        ("gpu-a, gpu-b", ("gpu-a", "gpu-b")),
        ("n1,n1", ("n1", "n1")),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[[1]]", "n[a]", "n[3-1]", "n[]", "n1,,n2", "n[1,]", ","])
def test_no_host_list(text: str) -> None:
    with pytest.raises(ConfigError):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-99999999999]", "n[1-1000]x[1-1000]", "a[1-200000]", "a[1-70000],b[1-70000]"])
def test_a_list_that_eats_the_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="too many"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n2", "n1", "n3", "n9"), "n[1-3,9]"),
        (("n09", "n08", "n10"), "n10,n[08-09]"),
        (("login", "n1", "n1"), "login,n1"),
        (("9", "10"), "[9-10]"),
    ],
)
def test_compress(names: tuple[str, ...], text: str) -> None:
    assert compress(names) == text


@given(st.sets(st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,3}){0,2}", fullmatch=True), max_size=40))
def test_nothing_is_lost_on_the_way_there_and_back(names: set[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(names)
