"""`overflow:` of fed.yaml: what is left out, what is nonsense, and which node is whose."""

import pytest

from federation.config import parse_config
from federation.config_overflow import OverflowConfig
from federation.errors import ConfigError
from federation.overflow.facts import Opt, Rule

SHORT = """version: 1
site: hpc
tls: {certificate: /c, ca: [/ca]}
peers:
  cloud: {address: 'h:1'}
pools:
  other: {local: {folder: /spool}}
overflow:
  cluster: hpc
  nodes:
    cloud-gpu: {pool: cloud/gpu, gateway: gw1, count: 2}
"""
RULE = SHORT + "  rules:\n    gpu: {}\n"


def overflow(text: str) -> OverflowConfig:
    found = parse_config(text).overflow
    assert found is not None
    return found


def test_what_is_left_out_lets_no_job_go() -> None:
    assert parse_config(SHORT[: SHORT.index("overflow:")]).overflow is None
    found = overflow(SHORT)
    assert (dict(found.rules), found.partition, found.wait_partition) == ({}, "cloud", "vgpu-wait")
    assert overflow(RULE).rules == {"gpu": Rule(opt=Opt.OUT)}


def test_a_node_is_known_by_its_name() -> None:
    found = overflow(SHORT)
    nodes = found.nodes["cloud-gpu"]
    assert nodes.names == ("cloud-gpu-1", "cloud-gpu-2")
    assert found.serving("cloud-gpu-2") is nodes
    for other in ("cloud-gpu-3", "cloud-gpu-02", "cloud-gpu", "cloud-gpu-", "gpu-1", ""):
        assert found.serving(other) is None


def test_nodes_may_be_of_a_pool_of_this_site() -> None:
    assert overflow(SHORT.replace("pool: cloud/gpu", "pool: hpc/other")).nodes["cloud-gpu"].pool == "hpc/other"


WRONG = {
    "misspelt": (SHORT + "  rule: {}\n", r"fed\.yaml:12: unknown key 'overflow\.rule'; did you mean 'rules'\?"),
    "misspelt in nodes": (
        SHORT.replace("gateway:", "gatway:"),
        r"fed\.yaml:11: unknown key 'overflow\.nodes\.cloud-gpu\.gatway'; did you mean 'gateway'\?",
    ),
    "misspelt in a rule": (
        RULE.replace("{}", "{after: 5}"),
        r"fed\.yaml:13: unknown key 'overflow\.rules\.gpu\.after'; did you mean 'after_s'\?",
    ),
    "no nodes": (
        SHORT[: SHORT.index("    cloud-gpu")].replace("nodes:", "nodes: {}"),
        r"fed\.yaml:10: overflow\.nodes",
    ),
    "no pool": (SHORT.replace("pool: cloud/gpu, ", ""), r"fed\.yaml:11: overflow\.nodes\.cloud-gpu\.pool: .*missing"),
    "a pool without its site": (
        SHORT.replace("cloud/gpu", "gpu"),
        r"fed\.yaml:11: .*'gpu' is no pool: write SITE/POOL",
    ),
    "an unknown site": (
        SHORT.replace("cloud/gpu", "clod/gpu"),
        r"fed\.yaml:11: overflow\.nodes\.cloud-gpu\.pool: there is no site clod: known are hpc, cloud",
    ),
    "an unknown pool of ours": (SHORT.replace("cloud/gpu", "hpc/gpu"), r"fed\.yaml:11: .*this site has no pool gpu"),
    "names of nodes": (SHORT.replace("cloud-gpu:", "cloud-gpu-:"), r"fed\.yaml:11: .*can't begin the names of nodes"),
    "names that pool nodes don't know": (
        SHORT.replace("cloud-gpu:", "burst-gpu:"),
        r"fed\.yaml:11: .*'burst-gpu' can't begin the names of virtual nodes: write cloud-NAME",
    ),
    "a host": (SHORT.replace("gw1", "'a b'"), r"fed\.yaml:11: overflow\.nodes\.cloud-gpu\.gateway"),
    "no node": (SHORT.replace("count: 2", "count: 0"), r"fed\.yaml:11: .*count: must be 1 or more"),
    "one partition for two": (SHORT + "  wait_partition: cloud\n", r"both 'cloud': they must be two"),
    "a rule for the cloud": (RULE.replace("gpu: {}", "cloud: {}"), r"'cloud' is no partition that users wait in"),
    "opt": (RULE.replace("{}", "{opt: maybe}"), r"fed\.yaml:13: overflow\.rules\.gpu\.opt: must be 'out' or 'in'"),
    "less than nothing": (RULE.replace("{}", "{after_s: -1}"), r"fed\.yaml:13: .*after_s: must be 0 or more"),
    "money": (RULE.replace("{}", "{spend_per_day: -5}"), r"fed\.yaml:13: .*spend_per_day"),
    "a yes": (RULE.replace("{}", "{recall: 1}"), r"fed\.yaml:13: .*recall: must be true or false"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_where_it_is(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config(text)
