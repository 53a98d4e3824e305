"""A CA in a folder: what it makes, what it refuses, and what is left whatever goes wrong."""

import datetime
import ipaddress
import os
from pathlib import Path

import pytest
from cryptography import x509

from federation.errors import ConfigError, Untrusted
from federation.pki import authority as ca
from federation.pki import files
from federation.pki.authority import State, check_out, create, hand_out, open_authority
from federation.pki.certificates import LEAF_LIFE, SKEW, Extra, fingerprint, number_of
from federation.pki.judge import Trust, judge
from federation.pki.names import site_of

NOW = datetime.datetime(2031, 5, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
NONE = Extra()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ca"


@pytest.fixture
def authority(folder: Path) -> ca.Authority:
    return create(folder, "lab", NONE, NOW)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_a_new_ca_keeps_its_key_to_itself(authority: ca.Authority, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes(folder) == {"ca.key": 0o600, "ca.pem": 0o644, "crl.pem": 0o644, "issued": 0o700, ".lock": 0o600}
    limits = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert limits.critical
    assert open_authority(folder, NOW).certificate == authority.certificate


def test_a_ca_is_never_overwritten(authority: ca.Authority, folder: Path) -> None:
    key = (folder / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        create(folder, "other", NONE, NOW)
    assert (folder / "ca.key").read_bytes() == key


def test_a_sites_certificate(authority: ca.Authority) -> None:
    leaf = authority.issue("edge-1", NONE, LEAF_LIFE, NOW).certificate
    assert site_of(leaf) == "edge-1"
    assert leaf.not_valid_before_utc == NOW - SKEW
    assert leaf.not_valid_after_utc == NOW + LEAF_LIFE
    assert leaf.serial_number.bit_length() > 64
    trust = Trust(authorities=(authority.certificate,), allowed={"edge-1": b""})
    assert judge(leaf, trust, NOW) == "edge-1"
    assert judge(leaf, trust, NOW - SKEW) == "edge-1"  # a peer's clock may be behind
    with pytest.raises(Untrusted, match="begins on 2031-05-01 11:00 UTC") as told:
        judge(leaf, trust, NOW - 2 * SKEW)
    assert "is this clock right?" in told.value.hint


def test_a_site_has_one_certificate_until_it_renews(authority: ca.Authority) -> None:
    first = authority.issue("edge", NONE, LEAF_LIFE, NOW)
    with pytest.raises(ConfigError, match="edge has a certificate until 2031-05-31"):
        authority.issue("edge", NONE, LEAF_LIFE, NOW)
    second = authority.renew("edge", LEAF_LIFE, NOW + DAY)
    assert second.key_pem != first.key_pem
    assert [one.state for one in authority.issued(NOW + DAY)] == [State.GOOD, State.GOOD]
    assert [one.state for one in authority.issued(NOW + LEAF_LIFE)] == [State.ENDED, State.GOOD]
    authority.renew("edge", LEAF_LIFE, NOW + 60 * DAY)  # after it ended, too
    with pytest.raises(ConfigError, match="hpc never had a certificate"):
        authority.renew("hpc", LEAF_LIFE, NOW)


def test_revoked_is_for_good(authority: ca.Authority, folder: Path) -> None:
    leaf = authority.issue("edge", NONE, LEAF_LIFE, NOW).certificate
    other = authority.issue("hpc", NONE, LEAF_LIFE, NOW).certificate
    number = number_of(authority.crl())
    (doomed,) = authority.revoke("edge", None, NOW)
    assert doomed.serial == leaf.serial_number
    assert number_of(authority.crl()) == number + 1
    revoked = frozenset((fingerprint(authority.certificate), one.serial_number) for one in authority.crl())
    trust = Trust(authorities=(authority.certificate,), revoked=revoked, allowed={"edge": b"", "hpc": b""})
    with pytest.raises(Untrusted, match="edge was revoked"):
        judge(leaf, trust, NOW)
    assert judge(other, trust, NOW) == "hpc"
    with pytest.raises(ConfigError, match="was revoked"):
        authority.renew("edge", LEAF_LIFE, NOW)
    with pytest.raises(ConfigError, match="edge has no good certificate"):
        authority.revoke("edge", None, NOW)
    authority.issue("edge", NONE, LEAF_LIFE, NOW)
    states = [one.state for one in open_authority(folder, NOW).issued(NOW) if one.site == "edge"]
    assert sorted(states) == [State.GOOD, State.REVOKED]


def test_one_of_two_certificates_is_revoked_by_its_serial(authority: ca.Authority) -> None:
    first = authority.issue("edge", NONE, LEAF_LIFE, NOW).certificate
    authority.renew("edge", LEAF_LIFE, NOW)
    authority.revoke("edge", first.serial_number, NOW)
    assert sorted(one.state for one in authority.issued(NOW)) == [State.GOOD, State.REVOKED]
    with pytest.raises(ConfigError, match="no good certificate with serial 7"):
        authority.revoke("edge", 7, NOW)


def test_what_ended_long_ago_is_forgotten(authority: ca.Authority) -> None:
    authority.issue("edge", NONE, LEAF_LIFE, NOW)
    authority.revoke("edge", None, NOW)
    later = NOW + LEAF_LIFE + ca.KEPT + DAY
    authority.issue("hpc", NONE, LEAF_LIFE, later)
    authority.revoke("hpc", None, later)
    assert [one.site for one in authority.issued(later)] == ["hpc"]
    assert len(list(authority.crl())) == 1  # the list does not grow for ever


def test_names_beside_the_sites_own(folder: Path) -> None:
    networks = (ipaddress.ip_network("10.0.0.0/8"),)
    authority = create(folder, "lab", Extra(dns=("example.org",), addresses=networks), NOW)
    good = Extra(dns=("fed.example.org",), addresses=(ipaddress.ip_network("10.1.2.3"),))
    for pair in (authority.issue("edge", good, LEAF_LIFE, NOW), authority.renew("edge", LEAF_LIFE, NOW)):
        names = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["edge.fed.internal", "fed.example.org"]
        assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.1.2.3")]
    for bad in (
        Extra(dns=("example.com",)),
        Extra(dns=("badexample.org",)),
        Extra(addresses=(ipaddress.ip_network("11.0.0.1"),)),
        Extra(addresses=(ipaddress.ip_network("::1"),)),
    ):
        with pytest.raises(ConfigError, match="may not write the name"):
            authority.issue("hpc", bad, LEAF_LIFE, NOW)


@pytest.mark.parametrize("name", ["", "Edge", "-a", "a-", "a.b", "a/b", "../x", "a b", "a\n", "é", "a" * 33, "*"])
def test_hostile_site_names(authority: ca.Authority, name: str) -> None:
    with pytest.raises(ConfigError, match="is no site name"):
        authority.issue(name, NONE, LEAF_LIFE, NOW)
    assert not authority.issued(NOW)


@pytest.mark.parametrize("life", [datetime.timedelta(0), -DAY, ca.MAX_LIFE + DAY])
def test_lives_have_bounds(authority: ca.Authority, life: datetime.timedelta) -> None:
    with pytest.raises(ConfigError, match="lives 1 to"):
        authority.issue("edge", NONE, life, NOW)


def test_a_ca_that_ended_or_is_yet_to_begin(authority: ca.Authority, folder: Path) -> None:
    end = authority.certificate.not_valid_after_utc
    leaf = authority.issue("edge", NONE, LEAF_LIFE, end - DAY).certificate
    assert leaf.not_valid_after_utc == end  # nothing outlives its CA
    with pytest.raises(ConfigError, match="ended on 2041"):
        open_authority(folder, end)
    with pytest.raises(ConfigError, match="begins on 2031-05-01 11:00 UTC, and here it is 2031-04-30") as told:
        open_authority(folder, NOW - DAY)
    assert told.value.hint == "set this host's clock"


def test_a_folder_or_key_that_others_can_read_or_change(authority: ca.Authority, folder: Path) -> None:
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(ConfigError, match="others can read it") as told:
        open_authority(folder, NOW)
    assert told.value.hint == f"chmod 600 {folder / 'ca.key'}"
    (folder / "ca.key").chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        open_authority(folder, NOW)
    folder.chmod(0o700)
    os.chown(folder / "ca.key", 12345, 0)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        open_authority(folder, NOW)


def test_a_key_that_is_another(authority: ca.Authority, folder: Path, tmp_path: Path) -> None:
    create(tmp_path / "other", "other", NONE, NOW)
    (folder / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        open_authority(folder, NOW)


@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\nsecretsecret\n"])
def test_no_byte_of_a_key_is_ever_told(authority: ca.Authority, folder: Path, content: bytes) -> None:
    (folder / "ca.key").write_bytes(content)
    with pytest.raises(ConfigError, match="holds no private key") as told:
        open_authority(folder, NOW)
    assert "secretsecret" not in str(told.value) + told.value.hint
    assert told.value.__suppress_context__


def test_a_certificate_is_on_record_before_it_is_handed_out(authority: ca.Authority, tmp_path: Path) -> None:
    pair = authority.issue("edge", NONE, LEAF_LIFE, NOW)  # and now the machine dies
    assert [one.serial for one in authority.issued(NOW)] == [pair.certificate.serial_number]


def test_handing_out_destroys_nothing(authority: ca.Authority, tmp_path: Path) -> None:
    out = tmp_path / "edge"
    pair = authority.issue("edge", NONE, LEAF_LIFE, NOW)
    hand_out(authority, pair, out)
    assert modes(out) == {"site.pem": 0o600, "ca.pem": 0o644, "crl.pem": 0o644}
    check_out(authority, "edge", out, NOW)
    with pytest.raises(ConfigError, match=r"site\.pem is not hpc's of this CA"):
        check_out(authority, "hpc", out, NOW)
    more = (out / "ca.pem").read_bytes() * 2
    (out / "ca.pem").write_bytes(more)
    hand_out(authority, authority.renew("edge", LEAF_LIFE, NOW), out)
    assert (out / "ca.pem").read_bytes() == more  # what the admin added stays
    other = create(tmp_path / "other", "other", NONE, NOW)
    with pytest.raises(ConfigError, match="is not edge's of this CA"):
        check_out(other, "edge", out, NOW)
    (out / "site.pem").unlink()
    with pytest.raises(ConfigError, match="is of another CA"):
        check_out(other, "edge", out, NOW)


def test_two_at_once(authority: ca.Authority, folder: Path) -> None:
    with ca._lock(folder), pytest.raises(ConfigError, match="another `fed pki` works"):
        authority.issue("edge", NONE, LEAF_LIFE, NOW)
    authority.issue("edge", NONE, LEAF_LIFE, NOW)


@pytest.mark.parametrize("dies_at", [1, 2, 3])
def test_a_ca_that_was_never_finished_is_no_ca(folder: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    _dies(monkeypatch, dies_at)
    with pytest.raises(KeyboardInterrupt):
        create(folder, "lab", NONE, NOW)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="there is no CA in"):
        open_authority(folder, NOW)
    with pytest.raises(ConfigError, match="holds a CA that was never finished") as told:
        create(folder, "lab", NONE, NOW)
    assert told.value.hint == f"rm -r {folder}, and try again"


@pytest.mark.parametrize("dies_at", [1, 2, 3, 4])
def test_what_is_cut_off_is_done_again_by_the_same_commands(
    authority: ca.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    out = tmp_path / "edge"
    _dies(monkeypatch, dies_at)
    with pytest.raises(KeyboardInterrupt):
        hand_out(authority, authority.issue("edge", NONE, LEAF_LIFE, NOW), out)
    monkeypatch.undo()
    known = {one.serial for one in authority.issued(NOW)}
    assert len(known) == (dies_at > 1)
    assert not (out / "site.pem").exists()
    again = authority.renew("edge", LEAF_LIFE, NOW) if known else authority.issue("edge", NONE, LEAF_LIFE, NOW)
    check_out(authority, "edge", out, NOW)
    hand_out(authority, again, out)
    assert modes(out) == {"site.pem": 0o600, "ca.pem": 0o644, "crl.pem": 0o644}


def _dies(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """At the write of this number, as a signal would do it."""
    write, count = files.write, 0

    def counted(path: Path, data: bytes, *, secret: bool = False) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        write(path, data, secret=secret)

    monkeypatch.setattr(files, "write", counted)


def test_a_renewal_brings_the_newest_list_and_leaves_those_of_others(authority: ca.Authority, tmp_path: Path) -> None:
    out = tmp_path / "edge"
    hand_out(authority, authority.issue("edge", NONE, LEAF_LIFE, NOW), out)
    other = create(tmp_path / "other", "lab", NONE, NOW)  # of the same name
    with (out / ca.CRL).open("ab") as file:
        file.write(ca.crl_pem(other.crl()))
    authority.issue("evil", NONE, LEAF_LIFE, NOW)
    before = (authority.folder / ca.CRL).read_bytes()
    authority.revoke("evil", None, NOW)
    hand_out(authority, authority.renew("edge", LEAF_LIFE, NOW), out)
    assert files.crls_in(out / ca.CRL) == [other.crl(), authority.crl()]
    newest = (out / ca.CRL).read_bytes()
    (authority.folder / ca.CRL).write_bytes(before)  # of a backup
    hand_out(authority, authority.renew("edge", LEAF_LIFE, NOW), out)
    assert (out / ca.CRL).read_bytes() == newest


def test_a_list_that_can_not_be_read_is_told_before_anything_is_made(authority: ca.Authority, tmp_path: Path) -> None:
    (tmp_path / ca.CRL).write_bytes(b"-----BEGIN X509 CRL-----\nhalf")
    with pytest.raises(ConfigError, match="holds no revocation list"):
        check_out(authority, "edge", tmp_path, NOW)
