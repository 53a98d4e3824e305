"""Which certificates prove a site, and which only look as if they did."""

import datetime
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from federation.errors import Untrusted
from federation.pki.certificates import Extra, Pair, Stamp, fingerprint, make_authority, make_leaf
from federation.pki.judge import Trust, judge
from federation.pki.names import site_of

NOW = datetime.datetime(2031, 5, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def authority(life: datetime.timedelta = 100 * DAY) -> Pair:
    return make_authority("lab", key(), Stamp(serial=1, now=NOW, life=life), Extra())


def leaf(ca: Pair, site: str = "edge") -> x509.Certificate:
    return make_leaf(ca, site, key(), Stamp(serial=9, now=NOW, life=DAY), Extra()).certificate


CA = authority()
TRUST = Trust(authorities=(CA.certificate,), allowed={"edge": b""})


def named(*names: x509.GeneralName, subject: str = "edge") -> x509.Certificate:
    """Signed by our CA, with these names only."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(CA.certificate.subject)
        .public_key(key().public_key())
        .serial_number(5)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(CA.key, hashes.SHA256())


def uris(*texts: str) -> Sequence[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(text) for text in texts]


@pytest.mark.parametrize(
    "names",
    [
        [],  # a common name is not looked at
        [x509.DNSName("federation://edge")],
        [x509.RFC822Name("federation://edge")],
        [x509.DNSName("edge.fed.internal")],
        uris("federation://edge", "federation://hpc"),
        uris("federation://edge", "federation://edge"),
        uris("federation://"),
        uris("federation://Edge"),
        uris("FEDERATION://edge"),
        uris("https://edge"),
        uris("federation://edge/"),
        uris("federation://edge:1"),
        uris("federation://x@edge"),
        uris("federation://edge\n"),
        uris("federation://edge\0"),
        uris("federation://edge.fed.internal"),
        uris("federation://" + "a" * 33),
    ],
    ids=str,
)
def test_names_that_are_no_sites(names: Sequence[x509.GeneralName]) -> None:
    with pytest.raises(Untrusted, match=r"the certificate names [012] sites"):
        judge(named(*names), TRUST, NOW)


def test_other_names_beside_the_sites_do_no_harm() -> None:
    assert site_of(named(*uris("https://hpc", "federation://edge"), x509.DNSName("hpc.fed.internal"))) == "edge"


def test_dates_of_the_certificate_and_of_its_ca() -> None:
    assert judge(leaf(CA), TRUST, NOW) == "edge"
    with pytest.raises(Untrusted, match="the certificate of edge ended on 2031-05-02 00:00 UTC"):
        judge(leaf(CA), TRUST, NOW + DAY)
    stamp = Stamp(serial=2, now=NOW - 2 * DAY, life=DAY)
    dead = make_authority("lab", CA.key, stamp, Extra()).certificate
    with pytest.raises(Untrusted, match="the CA of edge ended on 2031-04-30 00:00 UTC"):
        judge(named(*uris("federation://edge")), Trust(authorities=(dead,), allowed={"edge": b""}), NOW)


def test_a_serial_is_revoked_for_its_own_ca_only() -> None:
    """Two CAs may have given the same serial."""
    other = authority()
    both = Trust(
        authorities=(CA.certificate, other.certificate),
        revoked=frozenset({(fingerprint(other.certificate), 9)}),
        allowed={"edge": b""},
    )
    assert judge(leaf(CA), both, NOW) == "edge"
    with pytest.raises(Untrusted, match="was revoked"):
        judge(leaf(other), both, NOW)


def test_a_ca_speaks_for_the_sites_it_was_given_only() -> None:
    other = authority()
    trust = Trust(
        authorities=(CA.certificate, other.certificate),
        allowed={"edge": fingerprint(CA.certificate), "hpc": fingerprint(other.certificate)},
    )
    assert judge(leaf(CA, "edge"), trust, NOW) == "edge"
    assert judge(leaf(other, "hpc"), trust, NOW) == "hpc"
    for wrong in (leaf(CA, "hpc"), leaf(other, "edge")):
        with pytest.raises(Untrusted, match="is from another CA than the one given for it"):
            judge(wrong, trust, NOW)


def test_a_site_is_no_ca() -> None:
    """A certificate that another site signed with its own is from nobody."""
    edge = make_leaf(CA, "edge", key(), Stamp(serial=9, now=NOW, life=DAY), Extra())
    with pytest.raises(Untrusted, match="from a CA that is not believed"):
        judge(leaf(edge), TRUST, NOW)
