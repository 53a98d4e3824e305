"""Reading and writing keys, certificates and lists: who may own them, and what may be in them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from federation.errors import ConfigError
from slurm_plugin import atomic, trust
from slurm_plugin.errors import ConfigError as Unsafe

SECRET, PUBLIC = 0o600, 0o644
MAX_BYTES = 16 << 20  # of one file; a revocation list has 40 bytes a certificate

_Part = TypeVar("_Part")


def check_place(path: Path) -> None:
    """Nobody but root and this user may be able to change it. Raises ConfigError."""
    try:
        trust.check(path)
    except Unsafe as error:
        raise ConfigError(str(error), hint=error.hint) from None


def read(path: Path, *, secret: bool = False) -> bytes:
    """A small file that only root or this user can have written, and, if it is secret, read. Raises ConfigError."""
    check_place(path)
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}", hint="fed pki --help tells how they are made") from None
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    if secret and stat.S_IMODE(facts.st_mode) & 0o077:
        raise ConfigError(f"{path} holds a key, and others can read it", hint=f"chmod 600 {path}")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_BYTES} bytes")
    return data


def write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Crash: the old file or the new one. Raises ConfigError."""
    try:
        atomic.write(path, data, mode=SECRET if secret else PUBLIC)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}") from None


def key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises ConfigError, which never has a byte of the file in it."""
    key = _parsed(path, "private key without a passphrase", lambda: _load_key(read(path, secret=True)))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"the key in {path} is not of the curve P-256")
    return key


def certificates_in(path: Path) -> list[x509.Certificate]:
    """At least one. Raises ConfigError."""
    data = read(path)
    return _parsed(path, "certificate", lambda: x509.load_pem_x509_certificates(data))


def crls_in(path: Path) -> list[x509.CertificateRevocationList]:
    """At least one; a file may have those of several CAs, one after the other. Raises ConfigError."""
    return crls_of(path, read(path))


def crls_of(path: Path, data: bytes) -> list[x509.CertificateRevocationList]:
    """The same of what was read already."""
    begin = b"-----BEGIN X509 CRL-----"
    parts = data.split(begin)[1:]
    if not parts:
        raise ConfigError(f"{path} holds no revocation list")
    return [_parsed(path, "revocation list", lambda: x509.load_pem_x509_crl(begin + part)) for part in parts]  # noqa: B023 - called at once


def _load_key(data: bytes) -> object:
    return serialization.load_pem_private_key(data, password=None)


def _parsed(path: Path, what: str, parse: Callable[[], _Part]) -> _Part:
    try:
        return parse()
    except (ValueError, TypeError):
        raise ConfigError(f"{path} holds no {what}", hint="it must be PEM") from None
