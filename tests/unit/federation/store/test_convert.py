"""What a user asked for comes out of the journal as it went in, and so does what an older version wrote there."""

import json

from hypothesis import given

from federation.model.spec import Batch, JobSpec
from federation.store.convert import spec_from_blob, spec_to_blob
from tests.unit.federation.wire.test_convert import SPECS


@given(SPECS)
def test_a_spec_is_the_same_again(spec: JobSpec) -> None:
    assert spec_from_blob(spec_to_blob(spec)) == spec


def test_a_spec_of_before_there_were_jobs_of_slurms_is_read() -> None:
    spec = JobSpec(user="ann", script=b"\xff")
    assert "batch" not in json.loads(spec_to_blob(spec))
    assert spec_from_blob(spec_to_blob(spec)) == spec
    assert spec_from_blob(spec_to_blob(JobSpec(user="ann", batch=Batch()))).batch == Batch()
