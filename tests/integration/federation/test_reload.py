"""SIGHUP: a daemon takes up what fed.yaml says, while its jobs run on."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.federation.daemons import Pair, Site, pair
from tests.integration.federation.test_daemons import shown, until


@pytest.fixture
def both() -> Iterator[Pair]:
    with pair() as found:
        yield found


def told(site: Site, text: str, word: str) -> None:
    """It has this file now, and has said this of it."""
    before = site.log().count(word)
    site.config.write_text(text)
    assert site.process is not None
    site.process.send_signal(signal.SIGHUP)
    until(lambda: site.log().count(word) > before)


def pools(both: Pair) -> list[str]:
    return sorted(one["pool"] for one in json.loads(both.edge.fed("pools", "--json").stdout)["pools"])


def test_pools_peers_and_rules_change_under_a_running_job(both: Pair, tmp_path: Path) -> None:
    flag = both.hpc.folder.parent / "go-on"
    job = both.edge.submit("--wrap", f"until [ -e {flag} ]; do sleep 0.1; done; echo whole")
    until(lambda: shown(both, job)["state"] == "running")

    text = both.hpc.config.read_text()
    more = text.replace("  batch: ", f"  more: {{local: {{folder: {both.hpc.folder.parent}/more}}}}\n  batch: ")
    told(both.hpc, more.replace("[batch]", "[more]"), "daemon.reloaded")
    until(lambda: pools(both) == ["hpc/more"])  # it hears of what it may use
    both.edge.fed("wait", both.edge.submit("--wrap", "true"))
    told(both.hpc, more.replace("[batch]", "[batch, more]"), "daemon.reloaded")
    until(lambda: pools(both) == ["hpc/batch", "hpc/more"])

    edge = both.edge.config.read_text()
    both.hpc.fed("drain")
    until(lambda: b"its site is draining" in both.edge.fed("pools").stdout)
    waits = both.edge.submit("--to", "hpc/batch", "--wrap", "true")
    told(both.edge, edge + 'placing: {deny: {"": [hpc/batch]}}\n', "daemon.reloaded")  # what waits is looked at by it
    until(lambda: b"hpc/batch: account (none) is denied there" in both.edge.fed("explain", waits).stdout)
    both.hpc.fed("drain", "--end")
    told(both.edge, edge, "daemon.reloaded")
    both.edge.fed("wait", waits)

    told(both.hpc, text + "nonsense: 1\n", "daemon.not_reloaded")
    told(both.hpc, text.replace("cpus: 8", "cpus: 7"), "restart_for=['pools.batch']")
    flag.touch()
    both.edge.fed("wait", job)
    assert both.edge.fed("logs", job).stdout == b"whole\n"


def test_a_peer_that_is_struck_off_is_cut_and_comes_back_when_it_is_named_again(both: Pair) -> None:
    text = both.edge.config.read_text()
    told(both.edge, text.partition("peers:")[0] + "listen: 127.0.0.1:1\n", "daemon.reloaded")
    assert both.edge.fed("peers").stdout.splitlines()[1:] == []
    assert b"no pool is known" in both.edge.fed("doctor", wants=1).stdout
    told(both.edge, text, "daemon.reloaded")
    until(lambda: b"linked" in both.edge.fed("peers").stdout)
    both.edge.fed("wait", both.edge.submit("--wrap", "true"))
