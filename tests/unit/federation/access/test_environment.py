"""Which variables cross."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.access.environment import DEFAULT_ALLOW, NEVER, NEVER_BEGINS, check_pattern, never, scrub

HOSTILE = (
    *(b"SLURM_JOB_ID", b"SLURM_CPU_BIND", b"SLURM_CONF", b"SLURMD_NODENAME", b"SBATCH_GRES", b"SALLOC_X", b"SRUN_X"),
    *(b"PMI_RANK", b"PMIX_RANK", b"PMI2_X", b"LD_PRELOAD", b"LD_LIBRARY_PATH", b"BASH_ENV", b"ENV", b"SPANK_X"),
    *(b"BASH_FUNC_ls%%", b"CUDA_VISIBLE_DEVICES", b"FED_SOCKET", b"GLIBC_TUNABLES"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_never_crosses(name: bytes) -> None:
    done = scrub([(b"LANG", b"C"), (name, b"x")], ["*"], asked=[name])
    assert done.env == ((b"LANG", b"C"),)
    assert done.dropped == (name,)


def test_only_what_is_allowed_or_asked_for_crosses() -> None:
    env = [(b"LANG", b"C"), (b"LC_ALL", b"C"), (b"HOME", b"/root"), (b"MINE", b"1"), (b"PATH", b"/bin")]
    assert scrub(env, DEFAULT_ALLOW).env == ((b"LANG", b"C"), (b"LC_ALL", b"C"))
    asked = scrub(env, DEFAULT_ALLOW, asked=[b"MINE"])
    assert (b"MINE", b"1") in asked.env
    assert asked.dropped == (b"HOME", b"PATH")


@pytest.mark.parametrize("name", [b"", b"A-B", b"1A", b"A=B", b"A B", b"A\n", b"\xe9", b"A\0"])
def test_what_is_no_name_does_not_cross(name: bytes) -> None:
    assert scrub([(name, b"x")], ["*"], asked=[name]).env == ()


def test_a_value_with_nul_does_not_cross_and_any_other_is_kept_to_the_byte() -> None:
    values = (b"a,b\nc", b"'\"$(id)`", b"\xff\xfe", b"", b"x" * 100_000)
    for value in values:
        assert scrub([(b"A", value)], ["A"]).env == ((b"A", value),)
    assert scrub([(b"A", b"x\0y")], ["A"]).env == ()


def test_of_a_name_given_twice_the_last_counts() -> None:
    assert scrub([(b"A", b"1"), (b"B", b"2"), (b"A", b"3")], ["*"]).env == ((b"A", b"3"), (b"B", b"2"))


@given(st.lists(st.tuples(st.binary(max_size=12) | st.sampled_from(HOSTILE), st.binary(max_size=12)), max_size=20))
def test_nothing_forbidden_ever_crosses(env: list[tuple[bytes, bytes]]) -> None:
    done = scrub(env, ["*"], asked=[name for name, _ in env])
    for name, value in done.env:
        assert not never(name)
        assert (name, value) in env
        assert b"=" not in name
        assert b"\0" not in name + value
    assert {name for name, _ in done.env} | set(done.dropped) == {name for name, _ in env}
    assert scrub(done.env, ["*"]).env == done.env


@pytest.mark.parametrize("text", ["A", "A_*", "*", "lower"])
def test_patterns_that_a_site_may_write(text: str) -> None:
    assert check_pattern(text) == text


@pytest.mark.parametrize("text", ["", "A B", "*A", "A*B", "LD_*", "LD_PRELOAD", "SLURM_*", "BASH_ENV", "1", "é"])
def test_patterns_that_say_nothing_good(text: str) -> None:
    with pytest.raises(ValueError, match=r"never crosses|no variable's name"):
        check_pattern(text)


def test_the_document_names_all_that_never_cross() -> None:
    text = (Path(__file__).parents[4] / "docs" / "federation_security.md").read_text()
    words = set(re.findall(r"[A-Z_0-9]{2,}", text))
    assert {name.decode() for name in (*NEVER, *NEVER_BEGINS)} <= words


def test_the_defaults_are_patterns() -> None:
    assert all(check_pattern(one) for one in DEFAULT_ALLOW)
    assert not any(name.decode() in DEFAULT_ALLOW for name in NEVER)
