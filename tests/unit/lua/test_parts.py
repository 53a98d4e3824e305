"""vgpu.lua is what its parts say."""

import re
import subprocess

from tests.unit.docs.blocks import ROOT
from tests.unit.lua.harness import SOURCE

MAX_LINES = 300


def test_the_committed_file_is_what_is_joined() -> None:
    checked = subprocess.run([ROOT / "scripts" / "lua", "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_it_tells_its_version_and_no_part_is_long() -> None:
    assert re.fullmatch(r"-- vgpu \d+\.\d+\.\d+, parts [0-9a-f]{12}", SOURCE.read_text().splitlines()[0])
    parts = sorted((SOURCE.parent / "src").glob("*.lua"))
    assert parts
    assert all(len(part.read_text().splitlines()) <= MAX_LINES for part in parts)
