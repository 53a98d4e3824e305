"""The demo must fail when a step did not do what it claims."""

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab import commands, demo
from slurm_plugin.lab.demo import Story, check, until


def test_what_was_typed_is_shown_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert Story().type("echo one; echo two >&2") == "one\ntwo\n"
    assert capsys.readouterr().out == "root# echo one; echo two >&2\none\ntwo\n"


@pytest.mark.parametrize(("line", "fails"), [("false", False), ("true", True)])
def test_a_command_that_did_not_do_as_it_should_ends_the_demo(line: str, fails: bool) -> None:
    with pytest.raises(LabError, match=line):
        Story().type(line, fails=fails)


def test_a_claim_that_does_not_hold_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEP_LIMIT_S", 0.0)
    check(True, "this")
    with pytest.raises(LabError, match="that"):
        check(False, "that")
    with pytest.raises(LabError, match="in vain: it"):
        until(lambda: False, "it")


def test_a_demo_that_fails_says_why_takes_everything_down_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[object] = []

    def fail(story: Story) -> None:
        raise LabError("no power", hint="plug it in")

    monkeypatch.setattr(commands, "down", taken.append)
    monkeypatch.setattr(demo, "ensure_people", lambda: ("alice",))
    monkeypatch.setattr(demo, "remove_people", taken.append)
    monkeypatch.setattr(demo, "come_up", fail)
    assert demo.show(demo.one_site, demo.NAME) == 1
    assert capsys.readouterr().err == "error: no power\nhint: plug it in\n"
    assert taken == ["demo", "demo", ("alice",)]
