"""What a new fed.yaml changes in a daemon that runs, and what it says about the rest."""

from federation.config import FedConfig, parse_config
from federation.reloading import change

TEXT = """version: 1
site: hpc
listen: h:1
tls: {certificate: /c, ca: [/ca]}
pools:
  one: {local: {folder: /one}}
  two: {local: {folder: /two}}
peers:
  edge: {users: {ann: ann}}
"""


def read(*pairs: tuple[str, str]) -> FedConfig:
    text = TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return parse_config(text)


NOW = read()


def test_peers_placing_and_local_users_are_taken_up() -> None:
    more = "  far: {address: 'f:1', pools: [one]}\nplacing: {deny: {lab: [far]}}\nlocal: {admins: [op]}\n"
    wanted = read(("  edge: {users: {ann: ann}}\n", "  edge: {users: {ann: bo}}\n" + more))
    found = change(NOW, wanted, NOW.pools)
    assert (found.fresh, found.restart_for) == ({}, ())
    assert found.config.peers == wanted.peers
    assert (found.config.placing, found.config.local) == (wanted.placing, wanted.local)


def test_a_pool_comes_and_another_goes_and_what_it_was_is_kept_for_when_it_comes_back() -> None:
    wanted = read(("  two: {local: {folder: /two}}\n", "  three: {local: {folder: /three}}\n"))
    found = change(NOW, wanted, NOW.pools)
    assert list(found.config.pools) == ["one", "three"]
    assert (list(found.fresh), found.restart_for) == (["three"], ())
    back = change(found.config, NOW, {**NOW.pools, **found.fresh})
    assert (list(back.config.pools), back.fresh) == (["one", "two"], {})
    assert back.config.pools["two"] is NOW.pools["two"]


def test_what_wants_a_restart_is_named_and_stays_as_it_was() -> None:
    wanted = read(
        ("listen: h:1", "listen: h:2\nstate_dir: /elsewhere\nlocal: {socket: /other.sock, admins: [op]}"),
        ("folder: /one}", "folder: /other}"),
    )
    found = change(NOW, wanted, NOW.pools)
    assert found.restart_for == ("state_dir", "listen", "local.socket", "pools.one")
    assert (found.config.listen, found.config.state_dir) == (NOW.listen, NOW.state_dir)
    assert (found.config.local.socket, found.config.local.admins) == (NOW.local.socket, ("op",))
    assert found.config.pools["one"] is NOW.pools["one"]


def test_rules_of_overflow_are_taken_up_and_its_nodes_wait_for_a_restart() -> None:
    with_overflow = (
        "overflow: {{cluster: hpc, nodes: {{cloud-n: {{pool: hpc/one, gateway: {gateway}}}}}, rules: {rules}}}\npeers:"
    )
    begun, ruled, moved = (
        read(("peers:", with_overflow.format(gateway=gateway, rules=rules)))
        for gateway, rules in (("g", "{}"), ("g", "{gpu: {}}"), ("h", "{gpu: {}}"))
    )
    assert begun.overflow is not None
    assert ruled.overflow is not None
    assert change(begun, ruled, NOW.pools).restart_for == ()
    found = change(begun, moved, NOW.pools)
    assert found.restart_for == ("overflow",)
    assert found.config.overflow == ruled.overflow != begun.overflow
    assert change(NOW, begun, NOW.pools).restart_for == ("overflow",)
    assert change(NOW, begun, NOW.pools).config.overflow is None
