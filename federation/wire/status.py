"""Errors of the tree as gRPC statuses and back: one table, and three lines: code, what, hint."""

import grpc
import grpc.aio

from federation import errors

_STATUS: dict[str, grpc.StatusCode] = {
    errors.Refused.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unavailable.code: grpc.StatusCode.UNAVAILABLE,
    errors.OutcomeUnknown.code: grpc.StatusCode.UNKNOWN,
    errors.Untrusted.code: grpc.StatusCode.UNAUTHENTICATED,
    errors.StoreFull.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_KINDS = {kind.code: kind for kind in (errors.Refused, errors.Unavailable, errors.Untrusted, errors.StoreFull)}


def to_status(error: errors.FedError) -> tuple[grpc.StatusCode, str]:
    return _STATUS.get(error.code, grpc.StatusCode.INTERNAL), "\n".join((error.code, str(error), error.hint))


def from_status(error: grpc.aio.AioRpcError) -> errors.FedError:
    """What no daemon of ours wrote is Unavailable: the calls that move bytes may all be made again."""
    code, _, rest = (error.details() or "").partition("\n")
    message, _, hint = rest.partition("\n")
    if code in _KINDS and message:
        return _KINDS[code](message, hint=hint)
    return errors.Unavailable(error.details() or str(error.code()))
