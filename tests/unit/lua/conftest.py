from pathlib import Path

import pytest

from slurm_plugin import catalogue_file
from tests.cases.pool import pool
from tests.unit.lua.harness import VERSIONS, Lua


@pytest.fixture(params=VERSIONS)
def lua(request: pytest.FixtureRequest, tmp_path: Path) -> Lua:
    made = Lua(request.param)
    catalogue_file.write(tmp_path / "catalogue", pool())
    made.module[b"catalogue"] = str(tmp_path / "catalogue").encode()
    return made
