"""docs/federation.md says what `fed` prints, and what it can do."""

import dataclasses
import re
import shlex

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from federation.cli import setup
from federation.cli.main import app
from federation.cli.site import DoctorReport
from federation.desk import view
from federation.model.states import NEVER_LET_IN, End, Origin
from tests.unit.docs.blocks import ROOT, all_blocks

TEXT = (ROOT / "docs/federation.md").read_text()
DOCUMENTED = {
    "fed-job": view.FedJobView,
    "fed-jobs": view.FedJobList,
    "reason": view.ReasonView,
    "transfer": view.TransferView,
    "fed-peers": view.PeerList,
    "peer": view.PeerView,
    "stranger": view.StrangerView,
    "fed-pools": view.PoolList,
    "budget": view.BudgetView,
    "pool": view.PoolView,
    "fed-doctor": DoctorReport,
    "fed-render": setup.FedRendered,
    "fed-render-check": setup.FedChecked,
    "problem": setup.ProblemView,
    "fed-overflow": view.OverflowView,
    "overflow-rule": view.OverflowRuleView,
    "fed-overflow-job": view.OverflowJobView,
    "fed-sacct": view.RunList,
    "run": view.RunView,
}
TYPED = sorted({c for block in all_blocks() for c in block.commands if c.startswith("fed ") and "pki" not in c})


def test_every_field_is_listed_in_order() -> None:
    sections = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    tables = {one.splitlines()[0]: re.findall(r"^\| (\w+) \| ", one, re.MULTILINE)[1:] for one in sections}
    assert tables == {name: [field.name for field in dataclasses.fields(kind)] for name, kind in DOCUMENTED.items()}


def test_every_end_is_listed() -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith("| end |"))
    assert {end.value for end in End} - {End.NO_ROOM.value} == set(re.findall(r"[a-z_]+", line)) & {
        e.value for e in End
    }
    assert End.NO_ROOM in NEVER_LET_IN  # a job that finds no room is placed again, so it has no such end
    assert Origin.RESULTS_PENDING.value in TEXT


@pytest.mark.parametrize("command", TYPED)
def test_every_command_that_is_shown_exists(command: str) -> None:
    words = shlex.split(command.removesuffix("&").split(" 2> ")[0])[1:]
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    here = group.commands[words[0]]
    options = {option for parameter in here.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)} <= options


def test_each_option_has_a_variable_or_is_of_one_call() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name in ("jobs", "show", "explain", "wait", "peers", "pools", "doctor", "submit", "overflow", "sacct"):
        variables = {p.name: getattr(p, "envvar", None) for p in group.commands[name].params}
        assert (variables["json"], variables["socket"]) == ("FED_JSON", "FED_SOCKET")
