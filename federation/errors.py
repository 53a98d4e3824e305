"""What can break in the federation, as one tree.

    FedError
    ├── ConfigError        a file or folder that an admin made is wrong           exit 2
    ├── IllegalEvent       a job in this state can't have this happen to it       exit 3
    ├── Refused            policy or a backend said no, for good                  exit 4
    ├── Unavailable        certain: nothing was done                             exit 5, transient
    │   └── NoRoom         a backend that is well, and full now
    ├── OutcomeUnknown     asked, and no answer: it may have been done            exit 6, transient
    ├── StoreError         the site's journal                                     exit 7
    │   ├── StoreUnfit     wrong file system, newer version, damaged: not opened
    │   └── StoreFull      no room: nothing of this was written                   transient
    └── Untrusted          the other side did not prove that it is who it may be  exit 8

Each has a first line for a person, a stable `code`, `transient` (may the caller try again?), and a `hint`.
"""


class FedError(Exception):
    """Root of the tree. `str(error)` is the first line for a person."""

    code = "error"
    exit_code = 1
    transient = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(FedError):
    code = "config"
    exit_code = 2


class IllegalEvent(FedError):
    code = "illegal_event"
    exit_code = 3


class Refused(FedError):
    code = "refused"
    exit_code = 4


class Unavailable(FedError):
    code = "unavailable"
    exit_code = 5
    transient = True


class NoRoom(Unavailable):
    code = "no_room"


class OutcomeUnknown(FedError):
    code = "outcome_unknown"
    exit_code = 6
    transient = True


class StoreError(FedError):
    code = "store"
    exit_code = 7


class StoreUnfit(StoreError):
    code = "store_unfit"


class StoreFull(StoreError):
    code = "store_full"
    transient = True


class Untrusted(FedError):
    """`site`: who it is all the same, by a CA that is believed; "": not even that is proven."""

    code = "untrusted"
    exit_code = 8

    def __init__(self, message: str, *, hint: str = "", site: str = "") -> None:
        super().__init__(message, hint=hint)
        self.site = site
