"""Errors of the tree as gRPC statuses and back: one table, and a google.rpc.Status with the code and the hint."""

from typing import TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from federation import errors

_STATUS: dict[str, grpc.StatusCode] = {
    errors.Refused.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unavailable.code: grpc.StatusCode.UNAVAILABLE,
    errors.OutcomeUnknown.code: grpc.StatusCode.UNKNOWN,
    errors.Untrusted.code: grpc.StatusCode.UNAUTHENTICATED,
    errors.StoreFull.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_KINDS = {kind.code: kind for kind in (errors.Refused, errors.Unavailable, errors.Untrusted, errors.StoreFull)}


DOMAIN = "federation"
MOST_TEXT = 1024  # characters of a message, and of a hint: what tells of an end has no room for more

Ending: TypeAlias = tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]
"""What `abort` of a call wants."""


def to_status(error: errors.FedError, status: grpc.StatusCode | None = None) -> Ending:
    """`status` in place of the table's."""
    status = status or _STATUS.get(error.code, grpc.StatusCode.INTERNAL)
    told = status_pb2.Status(code=status.value[0], message=_text(str(error)))
    told.details.add().Pack(ErrorInfo(reason=error.code, domain=DOMAIN, metadata={"hint": _text(error.hint)}))
    return status, told.message, rpc_status.to_status(told).trailing_metadata


def _text(told: str) -> str:
    """Without what of a file's name is no text."""
    return told[:MOST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")


def from_status(error: grpc.aio.AioRpcError) -> errors.FedError:
    """What no daemon of ours wrote is Unavailable: the calls that move bytes may all be made again."""
    info = _info(error)
    message = error.details() or str(error.code())
    kind = _KINDS.get(info.reason, errors.Unavailable) if info.domain == DOMAIN else errors.Unavailable
    return kind(message, hint=info.metadata.get("hint", ""))


def _info(error: grpc.aio.AioRpcError) -> ErrorInfo:
    info = ErrorInfo()
    try:
        told = rpc_status.from_call(error)
        for one in told.details if told is not None else ():
            if one.Unpack(info):
                break
    except (ValueError, DecodeError):  # it says two things at once, or nothing that can be read
        return ErrorInfo()
    return info
