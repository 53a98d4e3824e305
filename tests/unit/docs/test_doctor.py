"""docs/doctor.md is the table of faults as the code has it. To write it anew: python -m tests.unit.docs.test_doctor"""

import re

from slurm_plugin.findings import FAULTS
from tests.unit.docs.blocks import ROOT

DOCUMENT = ROOT / "docs" / "doctor.md"
HEAD = "| code | what is wrong | what it does | what to paste |\n|---|---|---|---|\n"


def _cell(text: str) -> str:
    """Facts in capitals, as a manual page has them."""
    facts = re.sub(r"(?<!\{)\{(\w+)\}", lambda fact: fact[1].upper(), text)
    return facts.replace("{{", "{").replace("}}", "}").replace("|", r"\|")


def table() -> str:
    rows = (
        (f"{code}{' *' if fault.passing else ''}", _cell(fault.what), _cell(fault.why), f"`{_cell(fault.paste)}`")
        for code, fault in FAULTS.items()
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_document_has_the_table_of_faults() -> None:
    assert table() in DOCUMENT.read_text()


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text().partition(HEAD)
    DOCUMENT.write_text(before + table() + rest.partition("\n\n")[1] + rest.partition("\n\n")[2])
