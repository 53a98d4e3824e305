"""tests/cases/requests.yaml, on every reader of the grammar."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.catalogue import render
from slurm_plugin.job_request import Job, JobRewrite, decide
from slurm_plugin.request import Refusal
from tests.cases.pool import pool
from tests.unit.lua.harness import VERSIONS, Lua

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases" / "requests.yaml").read_text(encoding="utf-8"))
Reader = Callable[[Job], JobRewrite | Refusal | None]


@pytest.fixture(scope="module", params=["python", *VERSIONS])
def reader(request: pytest.FixtureRequest) -> Reader:
    catalogue = pool()
    if request.param == "python":
        return lambda job: decide(job, catalogue)
    lua = Lua(request.param)
    parsed = lua.catalogue(render(catalogue))
    return lambda job: lua.decide(job, parsed)


@pytest.mark.parametrize("case", CASES["texts"], ids=lambda case: repr(case["ask"]))
def test_text(reader: Reader, case: dict[str, Any]) -> None:
    found = reader(Job(per_node=case["ask"]))
    if "refused" in case:
        assert isinstance(found, Refusal)
        whole = "(offered" in case["refused"]
        assert (found.text if whole else found.text.split(" (offered")[0]) == case["refused"]
    else:
        assert (found.per_node if isinstance(found, JobRewrite) else found) == case["gives"]


@pytest.mark.parametrize("case", CASES["jobs"], ids=lambda case: repr(case["job"]))
def test_job(reader: Reader, case: dict[str, Any]) -> None:
    found = reader(Job(**_tuples(case["job"])))
    if "refused" in case:
        assert isinstance(found, Refusal)
        assert found.text.split(" (offered")[0] == case["refused"]
    elif case["gives"] is None:
        assert found is None
    else:
        assert isinstance(found, JobRewrite), found
        gives = _tuples(case["gives"])
        assert {key: asdict(found)[key] for key in gives} == gives


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """YAML has lists where a Job has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
