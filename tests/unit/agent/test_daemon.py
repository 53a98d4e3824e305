import resource

import pytest

from slurm_plugin.agent import daemon
from slurm_plugin.agent.daemon import FILES

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4 * FILES), (FILES, 4 * FILES)),
        ((1024, ANY), (FILES, ANY)),
        ((1024, 4096), (4096, 4096)),
        ((4 * FILES, 4 * FILES), None),
        ((ANY, ANY), None),
    ],
    ids=str,
)
def test_the_limit_of_open_files_is_raised_to_what_is_needed_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int] | None
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    daemon._raise_file_limit()
    assert set_to == ([after] if after else [])
