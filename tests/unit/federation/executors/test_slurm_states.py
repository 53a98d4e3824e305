"""Every word for a state that Slurm of 22.05 to 25.11 has, long, short, cut and with flags."""

import pytest

from federation.executors.slurm_states import end_of, is_over
from federation.model.states import End

LIVES = [
    "PENDING",
    "PD",
    "CONFIGURING",
    "CF",
    "RUNNING",
    "R",
    "COMPLETING",
    "CG",
    "SUSPENDED",
    "S",
    "STOPPED",
    "ST",
    "SIGNALING",
    "SI",
    "STAGE_OUT",
    "SO",
    "RESIZING",
    "RS",
    "REQUEUED",
    "RQ",
    "REQUEUE_FED",
    "RF",
    "REQUEUE_HOLD",
    "RH",
    "SPECIAL_EXIT",
    "SE",
    "RESV_DEL_HOLD",
    "RD",
    "POWER_UP_NODE",
    "UPDATE_DB",
    "EXPEDITING",
    "RUNNING+POWER_UP_NODE",
    "CONFIGURING+POWER_UP_NODE",
    "FAILED+COMPLETING",
    "CANCELLED+REQUEUED",
    "TIMEOUT+SPECIAL_EXIT",
    "COMPLETING+SIGNALING",
    "A_WORD_OF_TOMORROW",
]


@pytest.mark.parametrize("word", LIVES)
def test_what_lives_and_what_is_not_known_is_not_over(word: str) -> None:
    assert not is_over(word)
    assert not is_over(word.lower())


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("COMPLETED CD", None),
        ("FAILED F", None),
        ("CANCELLED CA CANCELLED+ REVOKED RV", End.CANCELLED),
        ("TIMEOUT TO DEADLINE DL", End.TIMEOUT),
        ("NODE_FAIL NF BOOT_FAIL BF LAUNCH_FAILED RECONFIG_FAIL", End.NODE_FAIL),
        ("PREEMPTED PR", End.PREEMPTED),
        ("OUT_OF_MEMORY OOM", End.OUT_OF_MEMORY),
    ],
)
def test_an_end_is_one_in_every_form(words: str, end: End | None) -> None:
    for word in words.split():
        assert is_over(word)
        assert end_of(word) is end


def test_what_is_told_behind_a_word_changes_nothing() -> None:
    for text in ("CANCELLED by 0", "CANCELLED by 1000", " CANCELLED by 0 ", "cancelled by 4294967294"):
        assert is_over(text)
        assert end_of(text) is End.CANCELLED


def test_no_word_says_nothing() -> None:
    assert not is_over("")
    assert end_of("") is None
