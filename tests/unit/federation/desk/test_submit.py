"""What a user may not ask for: what another site would refuse for its form must not wait here for a link."""

from dataclasses import replace
from typing import Any

import pytest

from federation.access.local import Caller
from federation.desk.submit import _check
from federation.errors import Refused
from federation.model.spec import JobSpec, Lease, OnSilence
from federation.wire.convert import MAX_TEXT, spec_from_wire, spec_to_wire
from federation.wire.crossing import MOST_SPEC_BYTES, check_crosses

ANN = Caller(pid=1, uid=0, gid=0, user="ann", admin=False)
SPEC = JobSpec(user="ann", account="Physik Süd", script=b"#!/bin/sh\n", gres="tape:1", pin="hpc/batch", deadline_at=2e9)


def test_what_crosses_is_taken() -> None:
    _check(ANN, SPEC)
    assert spec_from_wire(spec_to_wire(SPEC)) == SPEC


@pytest.mark.parametrize("field", ["user", "account", "gres", "pin"])
@pytest.mark.parametrize("text", ["a:\udc80", "a:\x1b[2J", "a\0", "a" * (MAX_TEXT + 1)])
def test_a_name_that_is_no_text_is_refused(field: str, text: str) -> None:
    changed: dict[str, Any] = {field: text}
    with pytest.raises(Refused, match="is no name"):
        _check(ANN, replace(SPEC, **changed))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(Refused, match="no site could take"):
        _check(ANN, replace(SPEC, deadline_at=value))
    with pytest.raises(Refused, match="no site could take"):
        _check(ANN, replace(SPEC, lease=Lease(on_silence=OnSilence.STOP, after_s=value)))


def test_a_job_that_is_larger_than_a_message_is_refused() -> None:
    with pytest.raises(Refused, match="without its files"):
        check_crosses(replace(SPEC, script=bytes(MOST_SPEC_BYTES)))
