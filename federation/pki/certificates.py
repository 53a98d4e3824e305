"""PURE: certificates and revocation lists, made from keys, serial numbers and times that the caller brings."""

import datetime
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.errors import ConfigError
from federation.pki.names import DOMAIN, dns_of, uri_of

SKEW = datetime.timedelta(hours=1)  # what is made now is good for a host whose clock is behind by this much
AUTHORITY_LIFE = datetime.timedelta(days=3650)
LEAF_LIFE = datetime.timedelta(days=30)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_EVERY_ADDRESS = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What makes a certificate the one it is."""

    serial: int
    now: datetime.datetime  # aware, as all here
    life: datetime.timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Names beside a site's own: of one certificate, or all that a CA may ever write."""

    dns: tuple[str, ...] = ()  # of a CA: with all names below each
    addresses: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    serial: int
    at: datetime.datetime


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of its DER."""
    return certificate.fingerprint(hashes.SHA256())


def make_authority(name: str, key: ec.EllipticCurvePrivateKey, stamp: Stamp, permitted: Extra) -> Pair:
    """A CA that can sign certificates of sites, and nothing that any other software would believe."""
    public = key.public_key()
    allowed: list[x509.GeneralName] = [x509.DNSName(one) for one in (f".{DOMAIN}", *permitted.dns)]
    allowed += [x509.IPAddress(one) for one in permitted.addresses]
    excluded = None if permitted.addresses else [x509.IPAddress(one) for one in _EVERY_ADDRESS]
    subject = _name(f"{name} federation CA")
    builder = (
        _begun(subject, subject, public, stamp)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(allowed, excluded), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Pair(key=key, certificate=builder.sign(key, hashes.SHA256()))


def make_leaf(authority: Pair, site: str, key: ec.EllipticCurvePrivateKey, stamp: Stamp, extra: Extra) -> Pair:
    """A site's certificate, for both ends of a connection; it ends with its CA at the latest."""
    check_permitted(authority.certificate, extra)
    end = min(stamp.now + stamp.life, authority.certificate.not_valid_after_utc)
    stamp = Stamp(serial=stamp.serial, now=stamp.now, life=end - stamp.now)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri_of(site))]
    names += [x509.DNSName(one) for one in (dns_of(site), *extra.dns)]
    names += [x509.IPAddress(one.network_address) for one in extra.addresses]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = authority.certificate
    builder = (
        _begun(_name(site), issuer.subject, key.public_key(), stamp)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return Pair(key=key, certificate=builder.sign(authority.key, hashes.SHA256()))


def make_crl(
    authority: Pair, revoked: Iterable[Revoked], *, number: int, now: datetime.datetime
) -> x509.CertificateRevocationList:
    """In force until a newer one takes its place: it never says less by being old."""
    issuer = authority.certificate
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - SKEW)
        .next_update(max(issuer.not_valid_after_utc, now))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    for one in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(one.at).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(authority.key, hashes.SHA256())


def revoked_in(crl: x509.CertificateRevocationList) -> list[Revoked]:
    return [Revoked(serial=one.serial_number, at=one.revocation_date_utc) for one in crl]


def number_of(crl: x509.CertificateRevocationList) -> int:
    """The higher, the newer; 0 of a CA that gives them none."""
    try:
        return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0


def is_of(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """Has that CA signed it?"""
    public = authority.public_key()
    kinds = (ec.EllipticCurvePublicKey, rsa.RSAPublicKey, ed25519.Ed25519PublicKey)
    return crl.issuer == authority.subject and isinstance(public, kinds) and crl.is_signature_valid(public)


def check_host(name: str) -> str:
    """Raises ConfigError."""
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise ConfigError(
            f"'{name[:64]}' is no host name, address or network", hint="such as fed.example.org, 10.0.0.0/8"
        )
    return name


def check_permitted(authority: x509.Certificate, extra: Extra) -> None:
    """Raises ConfigError for a name that everybody would refuse, since this CA may not write it."""
    try:
        limits = authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return
    names: Sequence[x509.GeneralName] = limits.permitted_subtrees or ()
    domains = [one.value for one in names if isinstance(one, x509.DNSName)]
    networks = [one.value for one in names if isinstance(one, x509.IPAddress)]
    wrong = [dns for dns in extra.dns if not any(_under(dns, domain) for domain in domains)]
    wrong += [str(one.network_address) for one in extra.addresses if not any(_within(one, net) for net in networks)]
    if wrong:
        raise ConfigError(
            f"this CA may not write the name {wrong[0]}",
            hint="what it may write is given when it is made: init --permit",
        )


def _under(dns: str, domain: str) -> bool:
    return dns == domain or dns.endswith(domain if domain.startswith(".") else f".{domain}")


def _within(one: Network, net: object) -> bool:
    if isinstance(one, ipaddress.IPv4Network):
        return isinstance(net, ipaddress.IPv4Network) and one.subnet_of(net)
    return isinstance(net, ipaddress.IPv6Network) and one.subnet_of(net)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, stamp: Stamp
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(stamp.serial)
        .not_valid_before(stamp.now - SKEW)
        .not_valid_after(stamp.now + stamp.life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
