"""Times, sizes and arrays as users of Slurm write them."""

import pytest

from federation.cli.amounts import deadline, mebibytes, seconds, silence, tasks
from federation.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "found"),
    [("30", 1800), ("1:30", 90), ("1:30:00", 5400), ("2-0", 172_800), ("1-2:3", 93_780), ("1-2:3:4", 93_784), ("0", 0)],
)
def test_a_time(text: str, found: int) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("500", 500), ("500M", 500), ("4G", 4096), ("4gb", 4096), ("1T", 1 << 20), ("1K", 1), ("0", 0)]
)
def test_memory(text: str, found: int) -> None:
    assert mebibytes(text) == found


@pytest.mark.parametrize(("text", "found"), [("3", (3,)), ("0-2", (0, 1, 2)), ("1-9:4", (1, 5, 9)), ("7,1,7", (7, 1))])
def test_an_array(text: str, found: tuple[int, ...]) -> None:
    assert tasks(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("4:00:00", 1014_400.0), ("2-0", 1_172_800.0), ("2001-09-09T01:46:40+00:00", 1e9)]
)
def test_a_deadline_is_a_time_from_now_or_a_date(text: str, found: float) -> None:
    assert deadline(text, 1e6) == found


@pytest.mark.parametrize(
    ("text", "found"), [("keep", ("keep", 0)), ("stop:30", ("stop", 1800)), ("replace:1:00:00", ("replace", 3600))]
)
def test_what_becomes_of_it_in_silence(text: str, found: tuple[str, int]) -> None:
    assert silence(text) == found


@pytest.mark.parametrize("text", ["keep:1", "stop", "stop:", "stop:0", "replace:soon", "other:1"])
def test_a_silence_without_a_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        silence(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "1:2:3:4", "1.5"])
def test_what_is_none_of_them_is_refused(text: str) -> None:
    for parse in (seconds, mebibytes, tasks, silence, lambda text: deadline(text, 0.0)):
        with pytest.raises(ConfigError):
            parse(text)


@pytest.mark.parametrize("text", ["5-1", "0-1000", "0-9:0", "0-500,501-1002", "1048576", "1-999999999999"])
def test_an_array_has_some_tasks_and_not_too_many(text: str) -> None:
    with pytest.raises(ConfigError):
        tasks(text)
