"""Acting as a user is one thread's, ends with the block, and is for people only."""

import threading
from pathlib import Path

import pytest

from federation.access.acting import account_of, acting_as
from federation.errors import Refused, Unavailable
from tests.integration.federation.access.person import GID, UID, person


def identity() -> dict[str, list[str]]:
    """Of this thread, as the kernel has it."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def test_one_thread_acts_and_the_others_do_not() -> None:
    before = identity()
    inside, leave, seen = threading.Event(), threading.Event(), {}

    def work() -> None:
        with acting_as(person()):
            seen.update(identity())
            inside.set()
            leave.wait(10)
        seen["after"] = identity()["Uid"]

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    now = identity()
    assert all(now[name] == before[name] for name in ("Uid", "Gid", "Groups", "CapEff"))
    leave.set()
    thread.join()
    assert seen["Uid"] == ["0", "0", "0", str(UID)]  # only the last, the file system's
    assert seen["Gid"] == ["0", "0", "0", str(GID)]
    assert seen["Groups"] == [str(GID)]
    override = 1 << 1  # CAP_DAC_OVERRIDE
    assert not int(seen["CapEff"][0], 16) & override
    assert seen["after"] == ["0", "0", "0", "0"]


def test_an_error_inside_comes_out_and_root_is_back() -> None:
    before = identity()
    with pytest.raises(ZeroDivisionError), acting_as(person()):
        raise ZeroDivisionError
    now = identity()
    assert all(now[name] == before[name] for name in ("Uid", "Gid", "Groups", "CapEff"))


def test_root_and_the_systems_own_are_nobody_here() -> None:
    for name, why in (("root", "has uid 0"), ("daemon", "has uid 1"), ("a\0b", "no user's name")):
        with pytest.raises(Refused, match=why):
            account_of(name)


def test_whom_a_name_service_does_not_know_now_it_may_know_later() -> None:
    with pytest.raises(Unavailable, match="no user 'no-such-user' on this host"):
        account_of("no-such-user")
