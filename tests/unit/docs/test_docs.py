"""What the documents say is so."""

import dataclasses
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from slurm_plugin import errors, explanation, history
from slurm_plugin.cli import doctor, setup, view
from slurm_plugin.cli.main import INTERRUPTED, NOBODY_READS, app
from slurm_plugin.cli.output import JSON_VERSION
from slurm_plugin.config import parse_pool
from slurm_plugin.findings import Finding
from tests.unit.docs.blocks import DOCUMENTS, PLACES, ROOT, Block, all_blocks, commands_to_run

BLOCKS = all_blocks()
COMMANDS = [command for block in BLOCKS if block.kind == "console" for command in block.commands]
INLINE = [text for document in DOCUMENTS for text in re.findall(r"`(vgpu [^`\n]+)`", document.read_text())]
DOCUMENTED = {
    "status": view.PoolView,
    "pause": view.PauseView,
    "pause state": view.PauseState,
    "node": view.NodeView,
    "gpu": view.GpuView,
    "slice": view.SliceView,
    "grant": view.GrantView,
    "waiting": view.WaitingView,
    "pending": view.PendingView,
    "explanation": explanation.Explanation,
    "blocker": explanation.Blocker,
    "change": explanation.Change,
    "instead": explanation.Instead,
    "serves": explanation.Serves,
    "job": view.JobView,
    "job grant": view.NodeGrant,
    "held slice": view.HeldSlice,
    "plan": view.PlanView,
    "gpu plan": view.GpuPlanView,
    "shape": view.ShapeView,
    "history": history.History,
    "entry": history.Entry,
    "doctor": doctor.Report,
    "finding": Finding,
    "render": setup.Rendered,
    "lab": view.LabView,
    "labs": view.LabList,
    "lab place": view.LabPlace,
    "lab-status": view.LabStatusView,
    "daemon": view.DaemonView,
    "lab-env": view.LabEnvironment,
}


def test_every_console_block_says_who_runs_it() -> None:
    unmarked = [
        (block.document, block.commands)
        for block in BLOCKS
        if block.kind == "console"
        and not block.mark.startswith("shown: ")
        and block.mark.removeprefix("run: ") not in PLACES
    ]
    assert not unmarked
    assert all(commands_to_run(place) for place in PLACES)


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS + INLINE if c.startswith("vgpu ")}))
def test_every_vgpu_command_in_the_documents_exists(command: str) -> None:
    words = shlex.split(command.split(" | ")[0].split(" > ")[0], comments=True)[1:]
    here = get_command(app)
    known = {option for parameter in here.params for option in parameter.opts}
    while words and isinstance(here, TyperGroup):
        if words[0].startswith("--"):  # an option of `vgpu` itself, with its value
            assert words[0] in known | {"--help", "--version"}
            words = words[2:]
            continue
        assert words[0] in here.commands, f"no command {words[0]!r} in {command!r}"
        here = here.commands[words.pop(0)]
    if not here.context_settings.get("allow_interspersed_args", True):  # what it runs has options of its own
        words = list(takewhile(lambda word: word.startswith("--"), words))
    options = {option for parameter in here.params for option in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "yaml"], ids=lambda b: b.document)
def test_every_pool_yaml_in_the_documents_loads(block: Block) -> None:
    assert block.mark == "pool.yaml"
    assert parse_pool(block.text).hosts


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        assert "://" in target or (document.parent / target).exists(), target


def _tables(text: str) -> dict[str, list[str]]:
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {s.splitlines()[0]: [m[1] for m in re.finditer(r"^\| (\w+) \| ", s, re.MULTILINE)][1:] for s in sections}


def test_the_json_document_lists_every_field_in_order() -> None:
    text = (ROOT / "docs" / "json.md").read_text()
    assert f"`version` ({JSON_VERSION})" in text
    wanted = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in DOCUMENTED.items()}
    assert _tables(text) == wanted


def test_the_json_document_lists_every_exit_code() -> None:
    def codes(kind: type[errors.VgpuError]) -> set[int]:
        return {kind.exit_code}.union(*map(codes, kind.__subclasses__()))

    text = (ROOT / "docs" / "json.md").read_text().split("## ")[0]
    listed = {int(m[1]) for m in re.finditer(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == codes(errors.VgpuError) | {0, 2, INTERRUPTED, NOBODY_READS}


def test_every_key_of_pool_yaml_is_explained() -> None:
    from slurm_plugin import config_planning, config_schema

    text = (ROOT / "docs" / "pool_yaml.md").read_text()
    in_tables = (
        *(config_schema.PoolFile, config_schema.NodesSection, config_schema.ControllerSection),
        config_planning.PlanningSection,
    )
    in_lines = (
        *(config_schema.GresSection, config_schema.PolicySection, config_schema.ClassSection),
        *(config_planning.ChangingSection, config_planning.ReachSection),
    )
    for key in [key for section in in_tables for key in section.model_fields]:
        assert f"| {key} |" in text, key
    for key in [key for section in in_lines for key in section.model_fields]:
        assert re.search(rf"`{key}[`:]", text), key
