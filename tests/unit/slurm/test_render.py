import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slurm_plugin.agent.config import parse_config
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.slurm import chain, conf_files, render
from slurm_plugin.slurm.checks import check
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.site import NodeLine, side_of
from tests.unit.slurm.sites import PARTITIONS, SIDE, node

CONFIGS = Path(__file__).parents[3] / "configs"
POOL = PoolConfig(
    pool="hpc",
    partitions=("gpu",),
    groups=(
        NodeGroup(hosts=("n1", "n2"), product="h100-80gb", count=4),
        NodeGroup(hosts=("n3",), gpus=(0, 7)),
    ),
)


def test_a_weight_is_that_of_all_gpus_whichever_are_in_the_pool() -> None:
    """What pool.yaml says stays, though a GPU has fallen off the bus; where it says nothing the node itself does."""
    side = side_of(POOL, {"n2": 3, "n3": 8}, accounting=False)
    assert side.nodes == (NodeLine(hosts=("n1", "n2"), gpus=4), NodeLine(hosts=("n3",), gpus=8))
    assert side.hosts == "n[1-3]"
    chosen = replace(POOL, groups=(replace(POOL.groups[0], gpus=(1,)), POOL.groups[1]))
    assert side_of(chosen, {"n3": 8}, accounting=False).nodes == side.nodes
    assert side_of(POOL, {}, accounting=False).nodes[0] == NodeLine(hosts=("n3",), gpus=0)  # not known, not guessed


def test_the_base_is_untyped_and_other_gres_are_kept() -> None:
    line = NodeLine(hosts=("n1", "n2"), gpus=4, attributes="CPUs=64 RealMemory=512000", other_gres="gpu:h100:4")
    assert (
        render.node_line(SIDE, line)
        == "NodeName=n[1-2] CPUs=64 RealMemory=512000 Gres=gpu:h100:4,vgpu:1000,vgpu_mem:32"
    )
    text = render.gres_conf(SIDE)
    assert text.splitlines()[0] == "NodeName=n[1-2] Name=vgpu Count=1000"
    assert {(entry.has_file, entry.type) for entry in conf_files.parse(text)} == {(False, "")}


def test_a_limit_of_the_partition_holds_while_waiting_too() -> None:
    assert render.mirrored_limits(SIDE, PARTITIONS) == {"MaxTime": "1-00:00:00"}
    limits = {"MinNodes": "2", "MaxMemPerNode": "64000", "MaxCPUsPerNode": "16", "DenyAccounts": "bio", "QoS": "gpus"}
    limited = {**PARTITIONS, "gpu": {**PARTITIONS["gpu"], **limits}}
    assert render.mirrored_limits(SIDE, limited) == {"MaxTime": "1-00:00:00", **limits}
    two = replace(SIDE, partitions=("gpu", "long"))
    differing = {**PARTITIONS, "long": {"MaxTime": "7-00:00:00", "AllowQos": "x"}}
    assert render.mirrored_limits(two, differing) == {}


def test_what_is_rendered_passes_the_checks() -> None:
    """A site that pastes all of it has no finding left."""
    lines = dict(
        line.split("=", 1) for line in render.slurm_conf(SIDE).splitlines() if line and not line.startswith("#")
    )
    assert "CliFilterPlugins" not in lines, "every command fails where its file is not there yet"
    optional = next(line for line in chain.cli_filter_lua(SIDE).splitlines() if "CliFilterPlugins=" in line)
    key, value = optional.strip(" -").split("=")
    lines[key] = value
    wait = lines.pop("PartitionName").split()
    wait_fields = dict(pair.split("=", 1) for pair in wait[1:])
    nodes = tuple(node(host, SIDE.node_gres(line)) for line in SIDE.nodes for host in line.hosts)
    live = Live(
        config=lines | {"SelectTypeParameters": "CR_CORE_MEMORY"},
        partitions={"gpu": {"Nodes": SIDE.hosts, "State": "UP"}, wait[0]: wait_fields},
        nodes=nodes,
        gres_conf=render.gres_conf(SIDE),
    )
    assert check(SIDE, live) == ()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("systemd/vgpu-agent.service", chain.agent_unit(SIDE)),
        ("systemd/vgpu-controller.service", chain.controller_unit(SIDE)),
        ("slurm/slurm.conf", render.slurm_conf(SIDE)),
        ("slurm/gres.conf", render.gres_conf(SIDE)),
        ("slurm/job_submit-lines.lua", chain.job_submit_lua(SIDE)),
        ("slurm/cli_filter-lines.lua", chain.cli_filter_lua(SIDE)),
        ("slurm/prolog-chain.sh", chain.prologs(SIDE)),
    ],
)
def test_the_examples_in_configs_are_what_is_rendered(path: str, text: str) -> None:
    assert (CONFIGS / path).read_text() == text


def test_what_an_agent_keeps_is_in_no_folder_of_the_controllers_user() -> None:
    """Where both are on one host, systemd gives all in a StateDirectory to the unit's user, and agents refuse it."""
    own, theirs = (
        {line.partition("=")[2] for line in unit(SIDE).splitlines() if line.startswith("StateDirectory=")}
        for unit in (chain.agent_unit, chain.controller_unit)
    )
    assert (own, theirs) == ({"vgpu-agent"}, {"vgpu"})
    config = parse_config(yaml.safe_load((CONFIGS / "agent.yaml").read_text()))
    assert {config.state_dir, parse_config({"controller": "ctl:6820"}).state_dir} == {Path("/var/lib/vgpu-agent")}


@pytest.mark.parametrize("unit", sorted((CONFIGS / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_systemd_gives_no_daemon_up(unit: Path) -> None:
    section, _, rest = unit.read_text().partition("[Service]")
    assert "StartLimitIntervalSec=0" in section.splitlines()
    assert "Restart=always" in rest.splitlines()


def test_the_controller_runs_as_whom_pool_yaml_says() -> None:
    """Clients make their munge credentials for this user: another one can't even read them."""
    pool = replace(POOL, controller=replace(POOL.controller, user="slurm"))
    assert "User=slurm" in chain.controller_unit(side_of(pool, {}, accounting=False)).splitlines()
    assert "User=root" in chain.controller_unit(SIDE).splitlines()
    assert "User=" not in chain.agent_unit(SIDE)


def test_slurmd_starts_when_the_agent_says_that_the_slices_are_there() -> None:
    """Order alone waits for nothing but that word: a slurmd before it registers a node without its slices."""
    lines = chain.agent_unit(SIDE).splitlines()
    assert {"Type=notify", "Before=slurmd.service"} <= set(lines)
    assert not [line for line in lines if "slurmd" in line and line.startswith(("After=", "Requires=", "PartOf="))]


def test_the_controllers_unit_lets_it_write_where_pool_yaml_says() -> None:
    shared = replace(SIDE, catalogue="/shared/vgpu/catalogue", state_dir="/var/lib/vgpu/controller")
    assert "ReadWritePaths=/shared/vgpu" in chain.controller_unit(shared).splitlines()
    elsewhere = side_of(
        replace(POOL, controller=replace(POOL.controller, state_dir=Path("/srv/v"))), {}, accounting=False
    )
    assert "ReadWritePaths=/srv/v" in chain.controller_unit(elsewhere).splitlines()
    assert "ReadWritePaths" not in chain.controller_unit(SIDE)


def test_the_file_that_keeps_ids_from_being_used_twice_is_included_where_the_controller_may_write_it() -> None:
    ahead = side_of(
        replace(POOL, controller=replace(POOL.controller, job_ids=Path("/srv/ids/job_ids.conf"))), {}, accounting=False
    )
    assert "Include /srv/ids/job_ids.conf" in render.slurm_conf(ahead).splitlines()
    assert "ReadWritePaths=/srv/ids" in chain.controller_unit(ahead).splitlines()
    assert "Include" not in render.slurm_conf(SIDE)


@pytest.mark.parametrize("text", [chain.job_submit_lua(SIDE), chain.cli_filter_lua(SIDE)])
def test_the_lines_for_a_sites_own_lua_call_what_our_module_has(text: str) -> None:
    module = (CONFIGS.parent / "slurm_plugin/hooks/lua/vgpu.lua").read_text()
    called = re.findall(r"vgpu\.(\w+)\(", text)
    assert called
    assert all(re.search(rf"^function M\.{name}\(|^M\.{name} *=", module, re.MULTILINE) for name in called)
