"""An agent killed at any place where something becomes lasting is followed by one that ends where it would have."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.lab import simgpu
from tests.contract.nvml.rig import built
from tests.integration.agent import mortal

pytestmark = pytest.mark.xdist_group("killed")  # all of them look at one run

LIMIT_S = 600.0
START = [["1g.20gb", 0], ["3g.40gb", 4]]
RECUT = [["1g.20gb", 0], ["1g.20gb", 4], ["1g.20gb", 6]]
FULL = [["1g.20gb", 0], ["1g.20gb", 4], ["1g.20gb", 6], ["2g.20gb", 2]]
CHAPTERS: dict[str, tuple[list[Any], set[str]]] = {  # the story so far: the layout, and who has a slice
    "": ([], set()),
    "agree": ([], set()),
    "leave": ([], set()),
    "cut": (START, set()),
    "prolog 1": (START, {"1"}),
    "step 1": (START, {"1"}),
    "recut": (RECUT, {"1"}),
    "prolog 2": (RECUT, {"1", "2"}),
    "epilog 1": (RECUT, {"2"}),
    "prolog 3": (FULL, {"2", "3"}),
}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each; the first was not killed."""
    built()
    done = subprocess.run(
        [sys.executable, "-m", mortal.__name__, str(tmp_path_factory.mktemp("lives"))],
        env=os.environ | {"LD_LIBRARY_PATH": str(simgpu.LIBRARY_FOLDER)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    print(done.stderr)  # for whoever looks at a failure
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_story_unkilled(deaths: list[dict[str, Any]]) -> None:
    whole = deaths[0]
    assert (whole["status"], whole["again"], whole["done"]) == (0, 0, list(CHAPTERS)[1:])
    assert whole["ended"]["layout"] == FULL
    assert set(whole["ended"]["grants"]) == {"2", "3"}


def test_every_kind_of_place_was_died_at(deaths: list[dict[str, Any]]) -> None:
    """A place that nobody passes is a place that nobody tests."""
    files = {re.sub("GPU-[0-9a-f-]+", "GPU", one["place"].rpartition(":")[0]) for one in deaths}
    made = {f"write grants/{job_id}.json" for job_id in (1, 2, 3)}
    assert {one for one in files if one.startswith(("write", "delete"))} == {
        *("write state/terms.json", "write state/visitors.json", "write state/leases.json"),
        *("write gpus/GPU.json", "delete gpus/GPU.json", "delete grants/1.json", *made),
    }
    again = {one.removeprefix("again: ") for one in files if one.startswith("again: ")}
    assert {"write gpus/GPU.json", "write state/lost.json", "nvml apply"} <= again
    assert sum(one["place"].startswith("write gpus") and not one["reboot"] for one in deaths) == 3 * (2 + 2 * 3)
    assert sum(one["place"].startswith("nvml apply") for one in deaths) == 2 * 3
    assert sum(one["place"].startswith(mortal.CALLS) for one in deaths) == 3 * len(mortal.CALLS)


def test_whoever_comes_after_finds_or_makes_everything_whole(deaths: list[dict[str, Any]]) -> None:
    for one in deaths[1:]:
        assert (one["status"], one["again"]) == (-9, 0), one
        found = one["found"]
        assert (found["half"], found["strays"], found["faults"]) == ([], [], []), one
        names = list(CHAPTERS)
        done = names.index(one["done"][-1]) if one["done"] else 0
        before, after = CHAPTERS[names[done]], CHAPTERS[names[done + 1]]
        assert found["layout"] in (before[0], after[0]), one
        assert before[1] & after[1] <= set(found["grants"]) <= before[1] | after[1], one


def test_it_all_ends_as_if_nobody_had_been_killed(deaths: list[dict[str, Any]]) -> None:
    for one in deaths[1:]:
        if not one["reboot"]:
            assert one["ended"] == deaths[0]["ended"], one


def test_an_intent_that_was_durable_is_gone_on_with(deaths: list[dict[str, Any]]) -> None:
    """Both with the driver never called, and after a power cut in the middle."""
    journal = [one for one in deaths if one["place"].startswith("write gpus") and one["done"][-1:] == ["step 1"]]
    assert len(journal) == 12
    for one in journal:
        nth = [other for other in journal if other["reboot"] == one["reboot"]].index(one)
        assert one["found"]["layout"] == (RECUT if nth >= 2 else START), one


def test_a_power_cut_takes_no_layout_and_says_whose_slices_went(deaths: list[dict[str, Any]]) -> None:
    for one in (one for one in deaths if one["reboot"]):
        assert one["ended"]["layout"] == FULL, one
        held = set(one["found"]["grants"])
        assert {str(job_id) for job_id in one["found"]["lost"]} == held, one
