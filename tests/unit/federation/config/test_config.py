"""fed.yaml: each mistake is told with its line and the nearest right word."""

from pathlib import Path

import pytest

from federation.access.rates import Rate
from federation.config import load_config, parse_config
from federation.config_schema import FedFile, PeerSection, keys_at
from federation.errors import ConfigError
from federation.pki.credentials import Peer
from federation.policy.admit import Guest

EXAMPLE = Path(__file__).parents[4] / "configs" / "fed.yaml"
SHORT = """version: 1
site: edge
tls:
  certificate: /etc/fed/tls/site.pem
  ca: [/etc/fed/tls/ca.pem]
peers:
  hpc:
    address: h:1
    users: {ann: ann}
"""


def test_the_example_shows_every_key_and_loads() -> None:
    found = load_config(EXAMPLE)
    assert found.site == "hpc"
    assert found.files.peers == (Peer(site="edge-1"), Peer(site="cloud"))
    edge = found.peers["edge-1"]
    assert edge.guest == Guest(
        pools=("gpu",),
        users={"ann": "a_smith", "bo": "guest7"},
        accounts={"bio": "ext_bio", "": "ext"},
        environment=("LANG", "LC_*", "OMP_*", "MODEL_*"),
    )
    assert edge.messages == Rate(per_s=5000, burst=10_000)
    assert found.placing.budget("bio") == 100.0
    assert found.placing.budget("") == 20.0
    assert found.local.accounts == {"bio": frozenset({"ann", "cy"}), "": frozenset({"bo"})}
    text = EXAMPLE.read_text()
    for key in (
        *FedFile.model_fields,
        *PeerSection.model_fields,
        *keys_at(("tls",)),
        *keys_at(("local",)),
        *keys_at(("placing",)),
        *keys_at(("overflow",)),
        *keys_at(("overflow", "nodes", "cloud-gpu")),
        *keys_at(("overflow", "rules", "gpu")),
    ):
        assert f"{key}:" in text or f"`{key}`" in text, key


def test_what_is_left_out_is_closed_or_safe() -> None:
    found = parse_config(SHORT)
    assert (found.listen, found.least_uid, found.local.admins) == ("", 1000, ())
    assert found.files.key == found.files.certificate
    assert found.peers["hpc"].guest.pools == ()


WRONG = {
    "empty": ("", "the file is empty"),
    "not yaml": ("version: [1\n", r"fed\.yaml:2: not YAML"),
    "version": (SHORT.replace("version: 1", "version: 2"), r"fed\.yaml:1: version"),
    "misspelt": (SHORT + "audits: {}\n", r"fed\.yaml:10: unknown key 'audits'; did you mean 'audit'\?"),
    "misspelt in a peer": (
        SHORT + "    pool: [a]\n",
        r"fed\.yaml:10: unknown key 'peers\.hpc\.pool'; did you mean 'pools'\?",
    ),
    "misspelt in tls": (SHORT.replace("  ca:", "  cas:"), r"fed\.yaml:5: unknown key 'tls\.cas'; did you mean 'ca'\?"),
    "misspelt in messages": (
        SHORT + "    messages: {per_s: 1, bursts: 2}\n",
        r"fed\.yaml:10: unknown key 'peers\.hpc\.messages\.bursts'; did you mean 'burst'\?",
    ),
    "a peer twice": (SHORT + "  hpc: {}\n", r"fed\.yaml:10: 'hpc' is given twice \(first on line 7\)"),
    "no ca": (SHORT.replace("[/etc/fed/tls/ca.pem]", "[]"), r"fed\.yaml:5: tls\.ca"),
    "a relative path": (SHORT.replace("/etc/fed/tls/site.pem", "site.pem"), r":4: .*must be an absolute path"),
    "a site's name": (SHORT.replace("site: edge", "site: Edge.1"), r"fed\.yaml:2: site: 'Edge\.1' is no site name"),
    "a peer's name": (SHORT.replace("  hpc:", "  h_pc:"), "'h_pc' is no site name"),
    "itself": (SHORT + "  edge: {address: 'h:2'}\n", r"fed\.yaml:10: peers: edge is this site itself"),
    "nobody dials": (SHORT + "  far: {}\n", r"fed\.yaml:10: peers: neither far nor this site can dial"),
    "root": (SHORT.replace("{ann: ann}", "{ann: root}"), r"fed\.yaml:9: .*never root"),
    "a uid": (SHORT.replace("{ann: ann}", "{ann: '1000'}"), r"fed\.yaml:9: .*never a number"),
    "a uid, bare": (SHORT.replace("{ann: ann}", "{ann: 1000}"), r"fed\.yaml:9: peers\.hpc\.users\.ann"),
    "a user's name": (SHORT.replace("{ann: ann}", "{ann: 'a b'}"), r"fed\.yaml:9: .*is no name"),
    "an address": (SHORT.replace("h:1", "h"), r"fed\.yaml:8: .*'h' is not host:port"),
    "a variable that never crosses": (SHORT + "    environment: [LD_*]\n", r"fed\.yaml:10: .*LD_\* never crosses"),
    "a pattern": (SHORT + "    environment: ['*X']\n", r"fed\.yaml:10: .*no variable's name"),
    "a rate": (SHORT + "    messages: {per_s: 0, burst: 1}\n", r"fed\.yaml:10: peers\.hpc\.messages\.per_s"),
    "a type": (SHORT + "    most_jobs: '5'\n", r"fed\.yaml:10: peers\.hpc\.most_jobs"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_where_it_is(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as told:
        load_config(tmp_path / "fed.yaml")
    assert told.value.hint == "configs/fed.yaml is a commented example"
