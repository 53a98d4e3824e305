"""Two daemons as an admin starts them: what is submitted at one runs at the other, and all of it comes back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.federation.daemons import Pair, pair


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("pair")) as found:
        yield found


def test_a_job_goes_there_and_its_output_and_code_come_back(both: Pair) -> None:
    job = both.edge.submit("--wrap", "echo out; echo err >&2; id -un; exit 7")
    both.edge.fed("wait", job, wants=7)
    done = both.edge.fed("logs", job)
    assert (done.stdout, done.stderr) == (b"out\nnobody\n", b"err\n")


def test_files_go_there_and_come_back(both: Pair, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(b"forty-two\n" * 300_000)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nmkdir out\ntr a-z A-Z < data.txt > out/big\n: > 'out/e m\tpty'\n")
    both.edge.submit("--stage-in", "data.txt", "--stage-out", "out/*", "job.sh", cwd=tmp_path)
    both.edge.fed("wait")
    assert (tmp_path / "out/big").read_bytes() == b"FORTY-TWO\n" * 300_000
    assert (tmp_path / "out/e m\tpty").read_bytes() == b""
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["big", "e m\tpty"]


def test_what_is_shown_of_a_job_is_a_document(both: Pair) -> None:
    job = both.edge.submit("--name", "a\nb", "--wrap", "kill -9 $$")
    both.edge.fed("wait", job, wants=137)
    shown = json.loads(both.edge.fed("show", job, "--json").stdout)
    assert (shown["version"], shown["kind"], shown["name"]) == (1, "fed-job", "a\nb")
    assert (shown["state"], shown["end"], shown["signal"], shown["site"]) == ("done", "signaled", 9, "hpc")
