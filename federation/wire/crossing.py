"""Whether a job can cross to another site at all."""

from federation.errors import Refused
from federation.model.spec import JobSpec
from federation.wire.convert import MAX_MESSAGE_BYTES, spec_from_wire, spec_to_wire

MOST_SPEC_BYTES = MAX_MESSAGE_BYTES - (64 << 10)  # as it crosses: its key, pool and signature go with it


def check_crosses(spec: JobSpec) -> None:
    """What other sites would not take may not wait here for them: it would end its link again and again."""
    try:
        told = spec_to_wire(spec)
        spec_from_wire(told)
    except ValueError as error:
        raise Refused(f"no site could take this job: {error}") from None
    if told.ByteSize() > MOST_SPEC_BYTES:
        raise Refused(
            f"the job is larger than {MOST_SPEC_BYTES >> 20} MiB without its files", hint="--stage-in brings files"
        )
