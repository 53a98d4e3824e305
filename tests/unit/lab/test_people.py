"""Accounts for a lab's people, where several labs may come up at once."""

from collections.abc import Sequence

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab import people


class Machine:
    """Its accounts, and what making one does: it works, fails, or somebody else was quicker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, accounts: set[str], makes: dict[str, bool | str]) -> None:
        self.accounts = accounts
        self.makes = makes
        monkeypatch.setattr(people, "_exists", lambda name: name in self.accounts)
        monkeypatch.setattr(people, "run_command", self.useradd)

    def useradd(self, argv: Sequence[str]) -> str:
        name = argv[-1]
        if self.makes[name] != "fails":
            self.accounts.add(name)
        if self.makes[name] is not True:
            raise LabError("useradd failed")
        return ""


def test_only_who_is_missing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, {"alice", "carol"}, {"bob": True})
    assert people.ensure_people() == ("bob",)


def test_whom_another_lab_made_at_the_same_moment_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"carol"}, {"alice": "other was quicker", "bob": True})
    assert people.ensure_people() == ("bob",)
    assert machine.accounts == {"alice", "bob", "carol"}


def test_an_account_that_can_not_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, set(), {"alice": "fails"})
    with pytest.raises(LabError, match="useradd failed"):
        people.ensure_people()
