"""What can break in the pool, as one tree.

    VgpuError
    ├── ConfigError        a file an admin wrote is wrong                      exit 2
    ├── RequestError       what a user asked for can't be given               exit 3
    ├── NvmlError          the GPU library said no                            exit 4
    │   ├── GpuBusy        something holds the GPU or instance (IN_USE)       transient
    │   ├── NoRoom         the instance does not fit (INSUFFICIENT_RESOURCES)
    │   └── ReadBackError  what we made is not what we asked for
    ├── SlurmError         a Slurm command failed                             exit 5
    │   └── SlurmUnavailable   slurmctld did not answer                       transient, outcome unknown
    ├── LinkError          agent and controller can't talk                    exit 6, transient
    │   └── Untrusted      the other side's credential is wrong
    ├── LabError           the lab could not be started or stopped            exit 7
    └── NotDone            what was begun goes on, longer than was waited     exit 8, transient

Each has a first line for a person, a stable `code`, `transient` (may the caller try again?), and a `hint` (what to do
next).
"""


class VgpuError(Exception):
    """Root of the tree. `str(error)` is the first line for a person."""

    code = "error"
    exit_code = 1
    transient = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(VgpuError):
    code = "config"
    exit_code = 2


class RequestError(VgpuError):
    code = "request"
    exit_code = 3


class NvmlError(VgpuError):
    code = "nvml"
    exit_code = 4


class GpuBusy(NvmlError):
    code = "gpu_busy"
    transient = True


class NoRoom(NvmlError):
    code = "no_room"


class ReadBackError(NvmlError):
    code = "read_back"


class SlurmError(VgpuError):
    code = "slurm"
    exit_code = 5
    said = ""  # all that the command printed against it: of a call for many things, a line for each that was refused


class SlurmUnavailable(SlurmError):
    code = "slurm_unavailable"
    transient = True


class LinkError(VgpuError):
    code = "link"
    exit_code = 6
    transient = True


class Untrusted(LinkError):
    code = "untrusted"
    transient = False


class LabError(VgpuError):
    code = "lab"
    exit_code = 7


class NotDone(VgpuError):
    code = "not_done"
    exit_code = 8
    transient = True
