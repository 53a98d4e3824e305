"""Fenced blocks of a Markdown file, with the mark in the HTML comment before each.

`<!-- run: NAME -->` before a console block: a test runs its commands, in order, in the place that NAME stands for.
`<!-- shown: WHY -->`: it can't be run in a test. `<!-- pool.yaml -->`: the block is a whole pool.yaml.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACES = frozenset({"demo", "setup", "lab", "pool", "pki", "fed", "burst"})

_BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent>[ ]*)```(?P<kind>\w*)\n(?P<text>.*?)^[ ]*```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    document: str
    kind: str
    mark: str
    text: str

    @property
    def commands(self) -> tuple[str, ...]:
        """What is typed at the prompt."""
        return tuple(line.strip()[2:] for line in self.text.splitlines() if line.strip().startswith("$ "))


def blocks(document: Path) -> list[Block]:
    return [
        Block(document=document.name, kind=m["kind"], mark=(m["mark"] or "").strip(), text=m["text"])
        for m in _BLOCK.finditer(document.read_text())
    ]


def all_blocks() -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document)]


def commands_to_run(place: str) -> list[str]:
    """The commands of every block marked `run: PLACE`, in the order of the documents."""
    return [command for block in all_blocks() if block.mark == f"run: {place}" for command in block.commands]
