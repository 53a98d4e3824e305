"""How a backend ended what had not started stands in the claim, on this host and behind ssh."""

import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from federation.executors import layout, ssh_scripts
from federation.executors.spool import Spool
from federation.model.states import End
from federation.model.token import Key

KEY = Key(UUID(int=7), 1)


def sh(script: str) -> str:
    return subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("end", [None, End.CANCELLED, End.NODE_FAIL])
def test_the_first_fence_tells_the_end_to_all_who_look_later(tmp_path: Path, end: End | None) -> None:
    spool, root = Spool(tmp_path), str(tmp_path)
    for here in (True, False):
        key = Key(KEY.token, 1 + here)
        for one in (end, None, End.LOST):
            said = "" if here else sh(ssh_scripts.fence(root, key, one)).strip()
            assert spool.fence(key, one) if here else layout.parse_claim(said).fence
        far = ssh_scripts.parse_records(sh(ssh_scripts.records(root, [key])), {})[key]
        assert far.claim == spool.record(key).claim == layout.Claim(fence=True, end=end)
