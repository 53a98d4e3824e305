"""Files as chunks, and errors as statuses."""

import hashlib
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest

from federation import errors
from federation.stage.chunks import CHUNK_BYTES, chunks_of, listed
from federation.stage.heap import Heap
from federation.wire.status import from_status, to_status


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1])
def test_a_file_is_known_by_its_chunks(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    found = listed(handle, b"name")
    os.close(handle)
    assert (found.size, found.sha256) == (size, hashlib.sha256(data).digest())
    parts = [data[at : at + CHUNK_BYTES] for at in range(0, size, CHUNK_BYTES)]
    assert found.chunks == tuple(hashlib.sha256(part).digest() for part in parts)
    assert chunks_of(size) == len(parts)


def test_a_heap_takes_only_what_its_hash_says(tmp_path: Path) -> None:
    heap = Heap(tmp_path / "heap")
    good = hashlib.sha256(b"data").digest()
    with pytest.raises(errors.Refused, match="not what its hash says"):
        heap.put(good, b"other")
    with pytest.raises(errors.Refused):
        heap.put(b"../../x", b"data")
    assert (heap.here([good]), heap.size()) == ([], 0)
    heap.put(good, b"data")
    heap.settle()
    assert heap.here([good, b"../../x", bytes(32)]) == [good]
    assert (heap.size(), heap.get(good)) == (4, b"data")
    heap.drop()
    with pytest.raises(errors.Unavailable):
        heap.get(good)


@pytest.mark.parametrize("kind", [errors.Refused, errors.Unavailable, errors.Untrusted, errors.StoreFull])
def test_an_error_crosses_as_what_it_is(kind: type[errors.FedError]) -> None:
    status, details, rich = to_status(kind("what happened", hint="what to do"))
    there = from_status(grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*rich), details=details))
    assert (type(there), str(there), there.hint) == (kind, "what happened", "what to do")


def test_an_error_with_a_name_that_is_no_text_or_has_no_end_crosses_too() -> None:
    status, details, rich = to_status(errors.Refused("\udcff" + "x" * 100_000, hint="\udcff"))
    there = from_status(grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*rich), details=details))
    assert (type(there), str(there), there.hint) == (errors.Refused, "\\udcff" + "x" * 1023, "\\udcff")


def test_a_status_that_contradicts_itself_is_not_ours() -> None:
    _, details, rich = to_status(errors.Refused("no"))
    metadata = grpc.aio.Metadata(*rich)
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details=details)
    assert type(from_status(error)) is errors.Unavailable


@pytest.mark.parametrize("details", [None, "", "Socket closed", "refused", "nonsense\nx\ny"])
def test_what_is_not_ours_may_be_asked_again(details: str | None) -> None:
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details=details)
    assert type(from_status(error)) is errors.Unavailable
