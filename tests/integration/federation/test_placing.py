"""What an admin says about accounts, budgets and deadlines, as users of a site meet it."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.model.token import RANDOM_BYTES, mint
from tests.integration.federation.daemons import Pair, pair
from tests.integration.federation.test_daemons import ask, shown, until
from tests.integration.federation.test_reload import pools, told

RULES = """placing: {{budget_per_day: {{lab: 5, "*": 1}}, deny: {{other: [hpc]}}}}
local: {{socket: {socket}, accounts: {{lab: [ann], "": [nobody], bio: [nobody]}}}}
"""


@pytest.fixture
def both() -> Iterator[Pair]:
    with pair() as found:
        text = found.edge.config.read_text().replace(f"local: {{socket: {found.edge.socket}}}\n", "")
        told(found.edge, text + RULES.format(socket=found.edge.socket), "daemon.reloaded")
        yield found


def test_budgets_are_shown_with_the_pools_and_a_deadline_with_the_reasons(both: Pair, tmp_path: Path) -> None:
    lines = both.edge.fed("pools").stdout.decode().splitlines()
    assert [line.split() for line in lines[-1:]] == [["lab", "5.00", "0.00"]]
    document = json.loads(both.edge.fed("pools", "--json").stdout)
    assert document["budgets"] == [{"account": "lab", "per_day": 5.0, "spent": 0.0}]

    job = both.edge.submit("--deadline", "0:01", "--time", "1:00:00", "--account", "lab", "--wrap", "true")
    both.edge.fed("wait", job)
    assert "price 0.00, after its deadline" in both.edge.fed("explain", job).stdout.decode()
    denied = both.edge.fed("submit", "--account", "other", "--wrap", "true", wants=4).stderr.decode()
    assert denied.startswith("error: no pool can run this: hpc/batch: account other is denied there\n")


def test_a_price_is_reserved_and_then_what_ran_is_spent(both: Pair) -> None:
    text = both.hpc.config.read_text()
    dear = f"  dear: {{local: {{folder: {both.hpc.folder.parent}/dear, cpus: 8, price_per_hour: 3.0}}}}\n  batch: "
    told(both.hpc, text.replace("  batch: ", dear, 1).replace("[batch]", "[batch, dear]"), "daemon.reloaded")
    until(lambda: pools(both) == ["hpc/batch", "hpc/dear"])
    words = ("--account", "lab", "--to", "hpc/dear", "--wrap")
    flag = both.hpc.folder.parent / "go-on"
    first = both.edge.submit("--time", "1:00:00", *words, f"until [ -e {flag} ]; do sleep 1; done")
    until(lambda: spent(both) == 3.0)
    assert shown(both, first)["cost"] == 3.0
    second = both.edge.submit("--time", "1:00:00", *words, "true")
    until(lambda: "over budget: 3.00 more than the 2.00 left of today's 5.00" in str(shown(both, second)["why"]))
    flag.touch()
    both.edge.fed("wait", first, second)  # it goes when the first has cost next to nothing
    assert 0.0 < spent(both) < 1.0
    assert b" spent, of account lab" in both.edge.fed("explain", first).stdout


def spent(both: Pair) -> float:
    (budget,) = json.loads(both.edge.fed("pools", "--json").stdout)["budgets"]
    return float(budget["spent"])


def test_who_may_not_use_an_account_is_told_which_he_may(both: Pair) -> None:
    token = str(mint(int(time.time() * 1000), os.urandom(RANDOM_BYTES)))
    said = ask(
        both, do="submit", token=token, account="lab", script_size=0, name="", env=[], asked=[], args=[], outputs=[]
    )
    assert '"nobody may not use account lab", "hint": "--account, one of: bio, none"' in said


def test_a_wrong_request_for_a_slice_is_refused_at_once_with_the_nearest_right_one(both: Pair) -> None:
    refused = both.edge.fed("submit", "--gres", "vgpu:2:20gb", "--wrap", "true", wants=4).stderr
    assert b"did you mean vgpu:20gb:2?" in refused
    until(lambda: pools(both) == ["hpc/batch"])
    elsewhere = both.edge.fed("submit", "--to", "hpc/gpu", "--wrap", "true", wants=4).stderr
    assert elsewhere == b"error: site hpc has no pool gpu for this one\nhint: it has batch\n"
    assert b"no deadline" in both.edge.fed("submit", "--deadline", "soon", "--wrap", "true", wants=2).stderr
