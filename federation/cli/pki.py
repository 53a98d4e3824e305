"""`fed pki`: a small CA for sites that have none. It works on one folder, and never prints a key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.cli.options import DEFAULT_PKI, DryRun, Json, PkiFolder
from slurm_plugin.cli.output import emit, emit_document, say

if TYPE_CHECKING:
    from cryptography import x509

    from federation.pki.authority import Authority, Issued
    from federation.pki.certificates import Extra, Pair

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="A small CA for sites that have none: docs/federation_security.md.",
)

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The site's name, such as edge-1.")]
Days = Annotated[int, typer.Option("--days", envvar="FED_PKI_DAYS", min=1, help="How long the certificate lives.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", envvar="FED_PKI_OUT", metavar="DIR", help="Where to write it. Default: sites/SITE of the CA."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateView:
    site: str  # empty: of a CA
    subject: str
    serial: str  # hexadecimal
    begins_at: float  # Unix seconds, as all that end so
    ends_at: float
    state: str  # good, ended, revoked; empty: not known here
    fingerprint: str  # SHA-256 of its DER, hexadecimal
    file: str  # where it was written or read; empty: nowhere
    changed: bool  # was it made or revoked just now?


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateList:
    certificates: tuple[CertificateView, ...]


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people, such as lab.")],
    folder: PkiFolder = DEFAULT_PKI,
    permit: Annotated[
        list[str] | None,
        typer.Option("--permit", metavar="NAME|NET", help="A domain or network that its certificates may name too."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a CA. It can sign nothing but certificates of sites and of what --permit gives."""
    from federation.pki.authority import CERTIFICATE, check_new, create

    permitted = _extra(permit or ())
    check_new(folder, name)
    if dry_run:
        return say(f"would make the CA {name} in {folder}")
    authority = create(folder, name, permitted, _now())
    return _tell(_view(authority.certificate, file=folder / CERTIFICATE, changed=True), json)


@app.command("issue")
def issue(
    site: SiteName,
    folder: PkiFolder = DEFAULT_PKI,
    out: Out = None,
    days: Days = 30,
    also: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME|ADDRESS", help="A host name or address beside the site's own name."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """A site's first certificate and key: site.pem, and the ca.pem and crl.pem it needs, in one folder."""
    from federation.pki.authority import check_out

    authority, place, extra = _open(folder), _out(folder, site, out), _extra(also or ())
    authority.check_room(site, extra, _now())
    check_out(authority, site, place, _now())
    if dry_run:
        return say(f"would issue a certificate of {days} days for {site}, to {place}")
    return _hand_out(authority, authority.issue(site, extra, timedelta(days=days), _now()), place, json)


@app.command("renew")
def renew(
    site: SiteName,
    folder: PkiFolder = DEFAULT_PKI,
    out: Out = None,
    days: Days = 30,
    within: Annotated[
        int | None,
        typer.Option("--within", metavar="DAYS", help="Only if fewer days than this are left: for a timer."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Another certificate and key with the same names. The daemon takes them up by itself; the old ones end in time."""
    from federation.pki.authority import check_out

    authority, place = _open(folder), _out(folder, site, out)
    newest = authority.newest(site, _now())
    check_out(authority, site, place, _now())
    if within is not None and newest.ends_at - _now() >= timedelta(days=within):
        say(f"{site} has a certificate until {newest.ends_at:%Y-%m-%d}: nothing to do")
        return _tell(_issued(newest), json)
    if dry_run:
        return say(f"would issue another certificate of {days} days for {site}, to {place}")
    return _hand_out(authority, authority.renew(site, timedelta(days=days), _now()), place, json)


@app.command("revoke")
def revoke(
    site: SiteName,
    folder: PkiFolder = DEFAULT_PKI,
    serial: Annotated[
        str, typer.Option("--serial", metavar="HEX", help="Only this one. Default: all good ones of the site.")
    ] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Put a site's certificates on the revocation list. It counts where the new crl.pem is."""
    from federation.pki.authority import CRL

    authority, only = _open(folder), _serial(serial)
    if dry_run:
        doomed = [one for one in authority.good(site, _now()) if only in (None, one.serial)]
        return _list(doomed, json, what="would revoke")
    doomed = authority.revoke(site, only, _now())
    say(f"copy {folder / CRL} to every site: running daemons take it up within seconds")
    return _list(doomed, json, what="revoked")


@app.command("show")
def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A file with a certificate. Default: the CA's own.")
    ] = None,
    folder: PkiFolder = DEFAULT_PKI,
    json: Json = False,
) -> None:
    """What a certificate says: whose it is, until when, and its fingerprint, to compare by telephone."""
    from federation.pki import files
    from federation.pki.authority import CERTIFICATE

    path = file or folder / CERTIFICATE
    _tell(_view(files.certificates_in(path)[0], file=path, changed=False), json)


@app.command("list")
def listing(
    site: Annotated[str, typer.Argument(metavar="[SITE]", help="Only this site's.")] = "",
    folder: PkiFolder = DEFAULT_PKI,
    json: Json = False,
) -> None:
    """Every certificate on record: good, ended or revoked."""
    found = _open(folder).issued(_now())
    _list([one for one in found if site in ("", one.site)], json)


def _now() -> datetime:
    return datetime.now(UTC)


def _open(folder: Path) -> "Authority":
    from federation.pki.authority import open_authority

    return open_authority(folder, _now())


def _out(folder: Path, site: str, out: Path | None) -> Path:
    from federation.pki.names import check_site

    return (out or folder / "sites" / check_site(site)).absolute()


def _extra(names: Sequence[str]) -> "Extra":
    """What is a number is an address or a network, what is not is a name."""
    import ipaddress

    from federation.pki.certificates import Extra, check_host

    dns, addresses = [], []
    for one in names:
        try:
            addresses.append(ipaddress.ip_network(one))
        except ValueError:
            dns.append(check_host(one))
    return Extra(dns=tuple(dns), addresses=tuple(addresses))


def _serial(text: str) -> int | None:
    from federation.errors import ConfigError

    try:
        return int(text.replace(":", ""), 16) if text else None
    except ValueError:
        raise ConfigError(f"'{text[:64]}' is no serial number", hint="fed pki list shows them") from None


def _hand_out(authority: "Authority", pair: "Pair", place: Path, json: bool) -> None:
    from federation.pki.authority import SITE_FILE, hand_out

    hand_out(authority, pair, place)
    _tell(_view(pair.certificate, file=place / SITE_FILE, changed=True), json)


def _issued(one: "Issued") -> CertificateView:
    return replace(_view(one.certificate, file=None, changed=False), state=one.state)


def _view(certificate: "x509.Certificate", *, file: Path | None, changed: bool) -> CertificateView:
    from federation.errors import Untrusted
    from federation.pki.certificates import fingerprint
    from federation.pki.names import site_of

    try:
        site = site_of(certificate)
    except Untrusted:
        site = ""
    return CertificateView(
        site=site,
        subject=certificate.subject.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        begins_at=certificate.not_valid_before_utc.timestamp(),
        ends_at=certificate.not_valid_after_utc.timestamp(),
        state="",
        fingerprint=fingerprint(certificate).hex(),
        file=str(file or ""),
        changed=changed,
    )


def _tell(view: CertificateView, json: bool) -> None:
    from slurm_plugin.cli.screen import safe

    if json:
        return emit_document("certificate", view)
    lines = [
        f"certificate of {'site ' + view.site if view.site else view.subject}",
        f"  from {_day(view.begins_at)} to {_day(view.ends_at)} UTC",
        f"  serial {view.serial}",
        f"  SHA-256 {view.fingerprint}",
    ]
    return emit(safe(one) for one in (*lines, *([f"  in {view.file}"] if view.file else [])))


def _list(found: "Sequence[Issued]", json: bool, *, what: str = "") -> None:
    from slurm_plugin.cli.screen import table

    views = [replace(_issued(one), changed=what == "revoked") for one in found]
    if json:
        return emit_document("certificates", CertificateList(certificates=tuple(views)))
    rows = ((one.site, what or one.state, _day(one.begins_at), _day(one.ends_at), one.serial) for one in views)
    return emit(table(("SITE", "STATE", "FROM", "TO", "SERIAL"), rows))


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
