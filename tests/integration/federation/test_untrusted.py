"""Why a link is not to be had is told on both sides: by who dials, and by whose gate said no."""

from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from federation.cli.main import run
from federation.errors import Untrusted
from federation.peer.faults import LASTS_S, MOST, Faults
from tests.integration.federation.daemons import Pair, Site, pair
from tests.integration.federation.test_daemons import until
from tests.integration.federation.test_reload import told


@pytest.fixture
def both() -> Iterator[Pair]:
    with pair() as found:
        yield found


def problems(site: Site) -> str:
    return site.fed("doctor", wants=None).stdout.decode()


def revoke(both: Pair, name: str, *, at: Site) -> None:
    authority = both.home.parent / "pki"
    assert run(["pki", "revoke", name, "--folder", str(authority)]) == 0
    (at.folder / "crl.pem").write_bytes((authority / "crl.pem").read_bytes())


def test_who_is_not_on_the_list_and_who_was_revoked(both: Pair) -> None:
    text = both.hpc.config.read_text()
    told(both.hpc, text.replace("  edge:\n", "  lab:\n"), "daemon.reloaded")
    until(lambda: "hpc says: site edge is not on the list of peers (see peers)" in problems(both.edge))
    until(lambda: "edge was turned away " in problems(both.hpc))
    assert "s ago: site edge is not on the list of peers" in problems(both.hpc)
    assert "no link to lab for " in problems(both.hpc)
    told(both.hpc, text, "daemon.reloaded")
    until(lambda: "nothing is wrong" in problems(both.edge))
    until(lambda: "nothing is wrong" in problems(both.hpc))

    revoke(both, "edge", at=both.hpc)
    until(lambda: "hpc says: the certificate of edge was revoked" in problems(both.edge))
    until(lambda: "the certificate of edge was revoked" in problems(both.hpc))
    (line,) = both.hpc.fed("peers").stdout.decode().splitlines()[1:]
    assert line.split()[:4] == ["edge", "dials", "us", "no"]
    assert line.endswith("the certificate of edge was revoked")


def test_a_peer_that_was_revoked_or_is_not_there_is_told_by_who_dials(both: Pair) -> None:
    revoke(both, "hpc", at=both.edge)
    until(lambda: "the certificate of hpc was revoked (its CA's admin can issue another)" in problems(both.edge))
    both.hpc.end()
    until(lambda: "hpc does not answer at 127.0.0.1:" in problems(both.edge))


def test_the_last_word_stands_until_there_is_a_link() -> None:
    now = 100.0
    faults = Faults(lambda: now)
    with pytest.raises(Untrusted), faults.dialling("hpc"):
        raise Untrusted("hpc is lab", hint="see peers")
    assert faults.of("hpc") == "hpc is lab (see peers)"
    cut = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset")
    with pytest.raises(grpc.aio.AioRpcError), faults.dialling("hpc"):
        raise cut
    assert faults.of("hpc") == "the link was cut: reset"
    faults.linked("hpc")
    assert (faults.of("hpc"), faults.lately()) == ("", {})
    for nth in range(MOST + 1):
        faults.note(f"s{nth}", "why")
    assert (faults.of("s0"), faults.of("s1")) == ("", "why")
    now += LASTS_S
    assert faults.lately() == {}
