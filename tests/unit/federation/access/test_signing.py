"""A job that was changed in any way, or that another site signed, is not taken."""

import datetime
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from federation.access.signing import MAX_CERTIFICATE_BYTES, Request, Signature, Verifier, canonical, sign
from federation.errors import Untrusted
from federation.model.spec import Input, JobSpec, Lease, OnSilence
from federation.model.token import Key
from federation.pki.certificates import Extra, Pair, Stamp, fingerprint, make_authority, make_leaf
from federation.pki.judge import Trust

NOW = datetime.datetime(2031, 5, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


CA = make_authority("lab", _key(), Stamp(serial=1, now=NOW, life=100 * DAY), Extra())
TRUST = Trust(authorities=(CA.certificate,), allowed={"edge": b"", "hpc": b""})
SPEC = JobSpec(
    user="ann",
    account="a1",
    name=b"\xffx",
    script=b"#!/bin/sh\r\n",
    env=((b"A", b"1,2\n"), (b"B", b"")),
    inputs=(Input(path=b"in/a", size=3, sha256=b"\1" * 32),),
    outputs=(b"out/*",),
    lease=Lease(on_silence=OnSilence.STOP, after_s=60),
)
REQUEST = Request(origin="edge", target="hpc", pool="gpu", key=Key(UUID(int=5), 1), spec=SPEC)


def verify(request: Request, signature: Signature, trust: Trust, now: datetime.datetime) -> bytes:
    """Asked twice: what is remembered must not change what is said."""
    verifier = Verifier(trust)
    first = _told(verifier, request, signature, now)
    assert _told(verifier, request, signature, now) == first
    return verifier.verify(request, signature, now)


def _told(verifier: Verifier, request: Request, signature: Signature, now: datetime.datetime) -> object:
    try:
        return verifier.verify(request, signature, now)
    except Untrusted as error:
        return str(error)


def leaf(site: str, ca: Pair = CA, life: datetime.timedelta = DAY) -> Pair:
    return make_leaf(ca, site, _key(), Stamp(serial=9, now=NOW, life=life), Extra())


EDGE = leaf("edge")


def test_a_signed_job_is_believed_and_says_by_which_key() -> None:
    assert verify(REQUEST, sign(REQUEST, EDGE), TRUST, NOW) == fingerprint(EDGE.certificate)


def _changed(request: Request) -> list[Request]:
    key = request.key
    specs: list[dict[str, Any]] = [
        {"user": "root"},
        {"account": ""},
        {"name": b""},
        {"script": b"#!/bin/sh\n"},
        {"args": (b"",)},
        {"env": ((b"A", b"1"), (b"B", b",2\n"))},
        {"env": ((b"B", b""), (b"A", b"1,2\n"))},
        {"gres": "vgpu:20gb"},
        {"cpus": 2},
        {"memory_mib": 1},
        {"time_limit_s": 1},
        {"pin": "hpc"},
        {"deadline_at": 0.0},
        {"inputs": ()},
        {"inputs": (Input(path=b"in/b", size=3, sha256=b"\1" * 32),)},
        {"outputs": (b"out/", b"*")},
        {"lease": Lease()},
    ]
    return [
        *(replace(request, spec=replace(request.spec, **change)) for change in specs),
        replace(request, target="cloud"),
        replace(request, pool="cpu"),
        replace(request, key=Key(key.token, 2)),
        replace(request, key=Key(UUID(int=6), 1)),
    ]


@pytest.mark.parametrize("changed", _changed(REQUEST), ids=str)
def test_no_part_of_a_signed_job_can_be_changed(changed: Request) -> None:
    with pytest.raises(Untrusted, match="is not the one that edge signed"):
        verify(changed, sign(REQUEST, EDGE), TRUST, NOW)


def test_signed_by_somebody_else() -> None:
    with pytest.raises(Untrusted, match="came from edge and is signed by hpc"):
        verify(REQUEST, sign(REQUEST, leaf("hpc")), TRUST, NOW)
    other = make_authority("lab", _key(), Stamp(serial=1, now=NOW, life=DAY), Extra())
    with pytest.raises(Untrusted, match="from a CA that is not believed"):
        verify(REQUEST, sign(REQUEST, leaf("edge", other)), TRUST, NOW)
    stolen = Signature(value=sign(REQUEST, leaf("hpc")).value, certificate=sign(REQUEST, EDGE).certificate)
    with pytest.raises(Untrusted, match="is not the one that edge signed"):
        verify(REQUEST, stolen, TRUST, NOW)


def test_signed_with_what_is_no_longer_good() -> None:
    signature, verifier = sign(REQUEST, EDGE), Verifier(TRUST)
    assert verifier.verify(REQUEST, signature, NOW)
    with pytest.raises(Untrusted, match="ended on"):
        verifier.verify(REQUEST, signature, NOW + DAY)  # though it was good a day ago
    revoked = replace(TRUST, revoked=frozenset({(fingerprint(CA.certificate), 9)}))
    with pytest.raises(Untrusted, match="was revoked"):
        verify(REQUEST, signature, revoked, NOW)


@given(st.binary(max_size=200))
def test_rubbish_for_a_signature(rubbish: bytes) -> None:
    good = sign(REQUEST, EDGE)
    for bad in (replace(good, value=rubbish), replace(good, certificate=rubbish)):
        with pytest.raises(Untrusted):
            verify(REQUEST, bad, TRUST, NOW)


def test_a_certificate_that_is_too_long_is_not_even_read() -> None:
    with pytest.raises(Untrusted, match="too long"):
        verify(REQUEST, Signature(value=b"", certificate=b"x" * (MAX_CERTIFICATE_BYTES + 1)), TRUST, NOW)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


def _kinds(value: object) -> object:
    """Python holds True, 1 and 1.0 for equal; a truth is not a number here."""
    if isinstance(value, tuple):
        return tuple(_kinds(one) for one in value)
    return (isinstance(value, bool), value)


@given(VALUES, VALUES)
def test_one_text_for_one_value(one: object, other: object) -> None:
    assert (canonical(one) == canonical(other)) == (_kinds(one) == _kinds(other))


def test_a_number_is_the_same_whatever_the_wire_makes_of_it() -> None:
    assert canonical(replace(SPEC, deadline_at=5)) == canonical(replace(SPEC, deadline_at=5.0))
    with pytest.raises(ValueError, match="can't be signed"):
        canonical(float("nan"))
    with pytest.raises(TypeError, match="list has no canonical text"):
        canonical([])


def test_a_field_at_its_default_is_left_out() -> None:
    assert b"gres" not in canonical(SPEC)
    assert b"gres" in canonical(replace(SPEC, gres="vgpu"))
