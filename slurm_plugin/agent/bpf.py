"""bpf(2) for device programs, by ctypes: a dozen instructions need no compiler and no library.

Every program of ours has a name that says what it refuses, so that what is attached can be told from what is wanted.
Source: bpf(2); Linux include/uapi/linux/bpf.h. Needs CAP_SYS_ADMIN.
"""

import ctypes
import functools
import hashlib
import os
import platform
import struct
from collections.abc import Collection

MAX_PROGRAMS = 64  # of one cgroup: the kernel's own bound

_SYSCALL = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH, _DETACH, _FD_BY_ID, _INFO, _QUERY = 5, 8, 9, 13, 15, 16
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE = 15, 6
_ALLOW_MULTI, _EFFECTIVE = 2, 1
_CHAR = 2  # the low half of a context's access type
_OURS = "vgpu_"
_INFO_BYTES, _NAME_AT = 80, 64


def why_not() -> str:
    """Why this kernel takes no device program from us; empty when it does."""
    try:
        os.close(_load(denial(0, {0}), name_of(0, {0})))
    except OSError as error:
        return f"the kernel takes no device program: {error.strerror}"
    return ""


def name_of(major: int, minors: Collection[int]) -> str:
    """At most 15 characters, the kernel's bound."""
    text = f"{major} {' '.join(map(str, sorted(minors)))}"
    return _OURS + hashlib.sha256(text.encode()).hexdigest()[:10]


def denial(major: int, minors: Collection[int]) -> bytes:
    """A program that refuses these character devices of one major number, and has no say in others."""
    spans = _spans(minors)
    grants = 6 + 2 * len(spans)  # where "yes" stands; "no" is two further on
    body = [
        _instruction(0x61, to=2, by=1, offset=0),  # r2 = access type
        _instruction(0x57, to=2, value=0xFFFF),
        _instruction(0x61, to=3, by=1, offset=4),  # r3 = major
        _instruction(0x61, to=4, by=1, offset=8),  # r4 = minor
        _instruction(0x55, to=2, value=_CHAR, offset=grants - 5),
        _instruction(0x55, to=3, value=major, offset=grants - 6),
    ]
    for first, last in spans:
        body.append(_instruction(0xA5, to=4, value=first, offset=grants - len(body) - 1))  # less than
        body.append(_instruction(0xB5, to=4, value=last, offset=grants - len(body) + 1))  # at most
    for answer in (1, 0):
        body += [_instruction(0xB7, to=0, value=answer), _instruction(0x95)]
    return b"".join(body)


def _spans(minors: Collection[int]) -> list[tuple[int, int]]:
    """First and last of each unbroken run of numbers, in order."""
    ordered = sorted(set(minors))
    firsts = [one for at, one in enumerate(ordered) if not at or ordered[at - 1] != one - 1]
    lasts = [one for at, one in enumerate(ordered, 1) if at == len(ordered) or ordered[at] != one + 1]
    return list(zip(firsts, lasts, strict=True))


def attach(cgroup: int, program: bytes, name: str) -> None:
    """Beside what is there already. Raises OSError: PermissionError where that is somebody's who shares with nobody."""
    _attach(cgroup, _load(program, name))


def inherit(cgroup: int, parent: int) -> bool:
    """Put on a cgroup what its parent has in a way that a program below takes the place of, as Slurm's does.

    False: the parent has no program, so what counts is further up. Raises OSError.
    """
    flags, ids = _query(parent)
    for one in () if flags & _ALLOW_MULTI else ids:
        _attach(cgroup, _bpf(_FD_BY_ID, struct.pack("=III", one, 0, 0)))
    return bool(ids)


def is_bare(cgroup: int) -> bool:
    """Has it no program of its own, ours or others'? Raises OSError."""
    return not _query(cgroup)[1]


def _attach(cgroup: int, loaded: int) -> None:
    try:
        _bpf(_ATTACH, struct.pack("=IIII", cgroup, loaded, _CGROUP_DEVICE, _ALLOW_MULTI))
    finally:
        os.close(loaded)


def detach(cgroup: int, program_id: int) -> None:
    """Raises OSError."""
    loaded = _bpf(_FD_BY_ID, struct.pack("=III", program_id, 0, 0))
    try:
        _bpf(_DETACH, struct.pack("=IIII", cgroup, loaded, _CGROUP_DEVICE, 0))
    finally:
        os.close(loaded)


def attached(cgroup: int, *, above: bool = False) -> dict[str, int]:
    """Our programs on this very cgroup, or those of the ones above too that hold in it: name -> id. Raises OSError."""
    names = {_program_name(one): one for one in _query(cgroup, _EFFECTIVE if above else 0)[1]}
    return {name: one for name, one in names.items() if name.startswith(_OURS)}


def _query(cgroup: int, how: int = 0) -> tuple[int, list[int]]:
    """The flags that its programs were attached with, and their ids."""
    ids = (ctypes.c_uint32 * MAX_PROGRAMS)()
    query = ctypes.create_string_buffer(
        struct.pack("=IIIIQII", cgroup, _CGROUP_DEVICE, how, 0, ctypes.addressof(ids), MAX_PROGRAMS, 0)
    )
    _call(_QUERY, query)
    flags, count = (struct.unpack_from("=I", query.raw, at)[0] for at in (12, 24))
    return flags, ids[: min(count, MAX_PROGRAMS)]


def _program_name(program_id: int) -> str:
    loaded = _bpf(_FD_BY_ID, struct.pack("=III", program_id, 0, 0))
    try:
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _bpf(_INFO, struct.pack("=IIQ", loaded, _INFO_BYTES, ctypes.addressof(info)))
    finally:
        os.close(loaded)
    return info.raw[_NAME_AT : _NAME_AT + 16].split(b"\0")[0].decode("ascii", "replace")


def _load(program: bytes, name: str) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"GPL")
    facts = (_CGROUP_DEVICE_PROGRAM, len(program) // 8, ctypes.addressof(code), ctypes.addressof(licence))
    return _bpf(_LOAD, struct.pack("=IIQQIIQII16s", *facts, 0, 0, 0, 0, 0, name.encode()))


def _instruction(code: int, *, to: int = 0, by: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, to | by << 4, offset, value)


def _bpf(command: int, attributes: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _call(command: int, attributes: "ctypes.Array[ctypes.c_char]") -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, f"bpf(2) has no known number on {platform.machine()}")
    answer = _libc().syscall(number, command, attributes, len(attributes))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(answer)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
