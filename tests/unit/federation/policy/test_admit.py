"""What a site takes from a peer. Who is not named is refused."""

from dataclasses import replace
from uuid import UUID

import pytest

from federation.model.messages import Submit
from federation.model.spec import Input, JobSpec
from federation.model.states import End
from federation.model.token import Key
from federation.policy.admit import MAX_INPUTS, MAX_SCRIPT_BYTES, Guest, House, Verdict, admit

KEY = Key(UUID(int=1), 1)
SPEC = JobSpec(user="ann")
GUEST = Guest(pools=("gpu",), users={"ann": "a_smith", "root": "root", "eve": "root"}, most_jobs=3, most_input_bytes=10)
HOUSE = House(pools={"gpu": 5, "cpu": 5}, guests={"edge": GUEST})


def verdict(spec: JobSpec = SPEC, pool: str = "gpu", origin: str = "edge", **taken: int) -> Verdict:
    submit = Submit(key=KEY, pool=pool, spec=spec)
    return admit(submit, origin, HOUSE, {("gpu", site): count for site, count in taken.items()})


def test_a_mapped_user_is_let_in_under_our_name_for_him() -> None:
    assert verdict() == Verdict(user="a_smith", spec=SPEC)


@pytest.mark.parametrize("user", ["bo", "root", "eve", "", "0", "1000", "Ann"])
def test_who_is_not_mapped_or_would_be_root_runs_nothing(user: str) -> None:
    assert verdict(replace(SPEC, user=user)).no is End.REFUSED


def test_an_unknown_peer_and_a_pool_that_is_not_his_are_refused() -> None:
    assert verdict(origin="mallory").no is End.REFUSED
    assert verdict(pool="cpu").no is End.REFUSED
    assert verdict(pool="nothing").no is End.REFUSED


def test_too_much_is_refused() -> None:
    assert verdict(replace(SPEC, script=bytes(MAX_SCRIPT_BYTES + 1))).no is End.REFUSED
    assert verdict(replace(SPEC, inputs=(Input(path=b"x", size=11, sha256=b""),))).no is End.REFUSED
    assert verdict(replace(SPEC, inputs=(Input(path=b"x", size=0, sha256=b""),) * (MAX_INPUTS + 1))).no is End.REFUSED


def test_what_is_full_says_so_and_may_be_asked_again() -> None:
    assert verdict(edge=2, cloud=2).no is None
    assert verdict(edge=2, cloud=3).no is End.NO_ROOM
    assert verdict(edge=3).no is End.NO_ROOM


def test_all_of_a_peer_s_input_that_is_kept_here_has_a_limit() -> None:
    house = replace(HOUSE, guests={"edge": replace(GUEST, most_held_bytes=100)})
    submit = Submit(key=KEY, pool="gpu", spec=replace(SPEC, inputs=(Input(path=b"x", size=10, sha256=b""),)))
    assert admit(submit, "edge", house, {}, 90).no is None
    assert admit(submit, "edge", house, {}, 91).no is End.NO_ROOM


def test_accounts_are_mapped_by_a_list_where_there_is_one() -> None:
    assert verdict(replace(SPEC, account="anything")).spec == replace(SPEC, account="anything")
    house = replace(HOUSE, guests={"edge": replace(GUEST, accounts={"bio": "ext_bio", "": "ext"})})
    for account, ours in (("bio", "ext_bio"), ("", "ext")):
        told = admit(Submit(key=KEY, pool="gpu", spec=replace(SPEC, account=account)), "edge", house, {})
        assert told.spec == replace(SPEC, account=ours)
    refused = admit(Submit(key=KEY, pool="gpu", spec=replace(SPEC, account="ext")), "edge", house, {})
    assert (refused.no, refused.spec) == (End.REFUSED, None)


def test_what_may_not_be_in_an_environment_is_not() -> None:
    env = ((b"A", b"1"), (b"LD_PRELOAD", b"x"), (b"SLURM_JOB_ID", b"7"), (b"B", b"2"))
    told = verdict(replace(SPEC, env=env))
    assert told.spec is not None
    assert told.spec.env == ((b"A", b"1"), (b"B", b"2"))
    house = replace(HOUSE, guests={"edge": replace(GUEST, environment=("A",))})
    told = admit(Submit(key=KEY, pool="gpu", spec=replace(SPEC, env=env)), "edge", house, {})
    assert told.spec is not None
    assert told.spec.env == ((b"A", b"1"),)
