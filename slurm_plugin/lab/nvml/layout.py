"""The state file's structures, field for field as in state.h. Both sides refuse a file of another layout."""

import ctypes
from ctypes import c_char, c_int32, c_uint32, c_uint64

MAGIC = 0x314D495355504756
LAYOUT = 1
GPUS, GIS, CIS = 16, 15, 8
PROFILES, CI_PROFILES, STARTS = 18, 8, 12
PROCESSES, FAULTS, COUNTERS, CALL_NAME = 128, 32, 128, 64

STALE_SESSIONS = 1
NO_PROFILES_WHEN_DISABLED = 2

CRASH_POINTS = ("", "before", "inside", "after")


class Slots(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("size", c_uint32), ("starts", c_uint32 * STARTS))


class CiProfile(ctypes.Structure):
    _fields_ = (
        ("id", c_uint32),
        ("slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("max_instances", c_uint32),
        ("is_default", c_uint32),
        ("reserved", c_uint32),
        ("slots", Slots),
        ("name", c_char * 32),
    )


class Profile(ctypes.Structure):
    _fields_ = (
        ("id", c_uint32),
        ("constant", c_uint32),
        ("slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("max_instances", c_uint32),
        ("p2p", c_uint32),
        ("engines", c_uint32 * 5),
        ("taken_last", c_uint32),
        ("slots", Slots),
        ("gi_ids", c_uint32 * STARTS),
        ("ci_profiles", c_uint32),
        ("memory_mib", c_uint64),
        ("name", c_char * 32),
        ("ci", CiProfile * CI_PROFILES),
    )


class Board(ctypes.Structure):
    _fields_ = (
        ("name", c_char * 64),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_device_id", c_uint32),
        ("minor", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("multiprocessors", c_uint32),
        ("memory_mib", c_uint32),
        ("compute_slices", c_uint32),
        ("memory_slices", c_uint32),
        ("max_mig_devices", c_uint32),
        ("mode_needs_reset", c_uint32),
        ("mode_persists", c_uint32),
        ("passthrough", c_uint32),
        ("profiles", c_uint32),
        ("profile", Profile * PROFILES),
        ("mig_uuid", c_char * 48 * CIS * GIS),
    )


class Ci(ctypes.Structure):
    _fields_ = (("serial", c_uint32), ("profile", c_uint32), ("start", c_uint32), ("size", c_uint32))


class Gi(ctypes.Structure):
    _fields_ = (
        ("serial", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("size", c_uint32),
        ("stuck", c_uint32),
        ("reserved", c_uint32),
        ("ci", Ci * CIS),
    )


class Gpu(ctypes.Structure):
    _fields_ = (
        ("mig", c_uint32),
        ("mig_pending", c_uint32),
        ("lost", c_uint32),
        ("persistence", c_uint32),
        ("gi", Gi * GIS),
    )


class Process(ctypes.Structure):
    _fields_ = (("pid", c_uint32), ("gpu", c_int32), ("gi", c_int32), ("ci", c_int32), ("memory_mib", c_uint64))


class State(ctypes.Structure):
    _fields_ = (
        ("sequence", c_uint64),
        ("next_serial", c_uint32),
        ("boots", c_uint32),
        ("process", Process * PROCESSES),
        ("gpu", Gpu * GPUS),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("times", c_uint32),
        ("code", c_int32),
        ("gpu", c_int32),
        ("delay_ms", c_uint32),
        ("crash", c_uint32),
        ("reserved", c_uint32),
        ("call", c_char * CALL_NAME),
    )


class Counter(ctypes.Structure):
    _fields_ = (("calls", c_uint64), ("call", c_char * CALL_NAME))


class File(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("layout", c_uint32),
        ("gpus", c_uint32),
        ("flags", c_uint32),
        ("cuda_version", c_uint32),
        ("driver_version", c_char * 32),
        ("tree_sequence", c_uint64),
        ("current", c_uint32),
        ("reserved", c_uint32),
        ("fault", Fault * FAULTS),
        ("counter", Counter * COUNTERS),
        ("board", Board * GPUS),
        ("state", State * 2),
    )
