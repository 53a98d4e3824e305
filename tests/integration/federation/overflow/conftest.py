"""Of the tests of one daemon's overflow."""

from collections.abc import Iterator

import pytest

from federation.overflow import reconcile


@pytest.fixture(autouse=True)
def _slurm_saves_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "SAVED_S", 0.0)
        yield
