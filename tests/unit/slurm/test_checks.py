from collections.abc import Mapping
from dataclasses import replace

import pytest

from slurm_plugin.findings import Finding
from slurm_plugin.slurm.checks import check
from slurm_plugin.slurm.facts import File, Live
from slurm_plugin.slurm.site import SlurmSide
from tests.unit.slurm.sites import CONFIG, GOOD, NODES, PARTITIONS, SIDE, node


def only(live: Live, side: SlurmSide = SIDE) -> Finding:
    (finding,) = check(side, live)
    assert finding.what
    assert finding.why
    return finding


def with_config(**values: str) -> Live:
    return replace(GOOD, config={**CONFIG, **values})


def with_partition(name: str, **values: str) -> Live:
    partitions: Mapping[str, Mapping[str, str]] = {**PARTITIONS, name: {**PARTITIONS[name], **values}}
    return replace(GOOD, partitions=partitions)


def test_a_site_as_rendered_has_no_finding() -> None:
    assert check(SIDE, GOOD) == ()


@pytest.mark.parametrize(
    ("setting", "value", "code", "paste"),
    [
        ("GresTypes", "gpu", "gres-types", "GresTypes=gpu,vgpu,vgpu_mem"),
        ("GresTypes", "vgpu", "gres-types", "GresTypes=vgpu,vgpu_mem"),
        ("PrologFlags", "", "prolog-flags", "PrologFlags=Alloc"),
        ("JobSubmitPlugins", "all_partitions", "job-submit-plugins", "JobSubmitPlugins=all_partitions,lua"),
        (
            "AccountingStorageTRES",
            "cpu,gres/vgpu",
            "accounting-storage-tres",
            "AccountingStorageTRES=cpu,gres/vgpu,gres/vgpu_mem",
        ),
        ("PrologEpilogTimeout", "30", "prolog-epilog-timeout", "PrologEpilogTimeout=120"),
        ("BatchStartTimeout", "10 sec", "batch-start-timeout", "BatchStartTimeout=120"),
        ("EnforcePartLimits", "NO", "enforce-part-limits", "EnforcePartLimits=ANY"),
        ("SelectType", "select/linear", "select-linear", "SelectType=select/cons_tres"),
        ("DefMemPerCPU", "", "def-mem", "DefMemPerCPU=4000"),
        ("Epilog", "", "no-epilog", "Epilog=/usr/libexec/vgpu/vgpu-epilog"),
    ],
)
def test_a_setting(setting: str, value: str, code: str, paste: str) -> None:
    finding = only(with_config(**{setting: value}))
    assert (finding.code, finding.paste) == (code, paste)


def test_cli_filter_is_optional() -> None:
    assert check(SIDE, with_config(CliFilterPlugins="")) == ()


def test_without_accounting_no_tres_is_asked_for() -> None:
    assert check(replace(SIDE, accounting=False), with_config(AccountingStorageTRES="cpu")) == ()


@pytest.mark.parametrize("where", ["DefMemPerNode", "DefMemPerCPU"])
def test_a_default_of_memory_may_be_the_partitions(where: str) -> None:
    bare = {name: value for name, value in CONFIG.items() if name != "DefMemPerCPU"} | {"DefMemPerNode": "UNLIMITED"}
    partitions = {**PARTITIONS, "gpu": {**PARTITIONS["gpu"], where: "2000"}}
    assert check(SIDE, replace(GOOD, config=bare, partitions=partitions)) == ()
    assert only(replace(GOOD, config=bare)).code == "def-mem"
    assert check(SIDE, replace(GOOD, config={**bare, "SelectTypeParameters": "CR_CORE"})) == ()


def test_a_sites_own_hook_that_does_not_call_ours() -> None:
    live = replace(
        with_config(TaskProlog="/etc/slurm/tp.sh"), hooks={**GOOD.hooks, "TaskProlog": "/etc/slurm/tp.sh\necho x"}
    )
    assert only(live).paste == "/usr/libexec/vgpu/vgpu-taskprolog || exit 1"
    calls = replace(live, hooks={**GOOD.hooks, "TaskProlog": "/usr/libexec/vgpu/vgpu-taskprolog || exit 1"})
    assert check(SIDE, calls) == ()


def test_a_hook_that_cannot_be_read_here_is_not_accused() -> None:
    assert check(SIDE, replace(with_config(Prolog="/on/the/node/only"), hooks={})) == ()


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"Hidden": "NO"}, "wait-partition-shown"),
        ({"PriorityTier": "1"}, "wait-partition-tier"),
        ({"Nodes": "n[1-2]"}, "wait-partition-nodes"),
        ({"MaxTime": "UNLIMITED"}, "wait-partition-limits"),
    ],
)
def test_the_wait_partition(values: Mapping[str, str], code: str) -> None:
    finding = only(with_partition("vgpu-wait", **values))
    assert finding.code == code
    assert finding.paste == (
        "PartitionName=vgpu-wait Nodes=n[1-3] State=DOWN Hidden=YES PriorityTier=0 MaxTime=1-00:00:00"
    )


def test_a_wait_partition_that_is_up_is_closed_by_a_command() -> None:
    finding = only(with_partition("vgpu-wait", State="UP"))
    command, _, remark = finding.paste.partition("   # ")
    assert (finding.code, command) == ("wait-partition-up", "scontrol update partitionname=vgpu-wait state=down")
    assert "State=DOWN in slurm.conf" in remark  # else its next start opens it


def test_no_wait_partition_and_no_partition() -> None:
    codes = [finding.code for finding in check(SIDE, replace(GOOD, partitions={}))]
    assert codes == ["no-partition", "no-wait-partition"]


def test_a_partition_of_the_pools_that_is_no_higher_than_the_wait_partition() -> None:
    assert only(with_partition("gpu", PriorityTier="0")).paste == "PartitionName=gpu ... PriorityTier=1"


def test_an_exclusive_partition_and_one_elsewhere() -> None:
    assert only(with_partition("gpu", OverSubscribe="EXCLUSIVE")).code == "exclusive"
    assert only(with_partition("gpu", Exclusive="NODE")).code == "exclusive"
    assert only(with_partition("gpu", Nodes="m[1-3]")).code == "partition-nodes"


@pytest.mark.parametrize(
    ("gres", "code"),
    [
        ("vgpu:999,vgpu_mem:64", "gres-total"),
        ("vgpu:m20:3,vgpu:pad:996,vgpu_mem:64", "gres-total"),
        ("gpu:h100:8,vgpu:1000,vgpu_mem:32", "gres-total"),
        ("gpu:h100:8", "gres-total"),
    ],
)
def test_a_total(gres: str, code: str) -> None:
    findings = check(SIDE, replace(GOOD, nodes=(*NODES[:2], node("n3", gres))))
    assert {finding.code for finding in findings} == {code}
    kept = "gpu:h100:8," if gres.startswith("gpu:") else ""
    (paste,) = {finding.paste for finding in findings}
    assert paste.startswith(f"NodeName=n3 Gres={kept}vgpu:1000,vgpu_mem:64 ")
    assert paste.endswith("scontrol reconfigure")  # what brings it back where slurm.conf is right


def test_a_node_slurm_does_not_know() -> None:
    assert only(replace(GOOD, nodes=NODES[:2])).paste == "NodeName=n3 Gres=vgpu:1000,vgpu_mem:64"


def test_a_total_that_slurm_prints_in_k() -> None:
    side = replace(SIDE, gres=replace(SIDE.gres, total=1024), nodes=())
    assert "total-k" in {finding.code for finding in check(side, GOOD)}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("name=vgpu file=/dev/nvidia[0-3]", "gres-file"),
        ("NodeName=other Name=vgpu MultipleFiles=/dev/a", "gres-file"),
        ("NodeName=n1 Name=vgpu Type=1g.10gb Count=7", "gres-type"),
        ("AutoDetect=nvml", "autodetect"),
        ("NodeName=n[2-9] AutoDetect=nvml Name=gpu", "autodetect"),
    ],
)
def test_gres_conf(line: str, code: str) -> None:
    assert only(replace(GOOD, gres_conf=f"# ours\n{line} # theirs\n")).code == code


@pytest.mark.parametrize(
    "line", ["NodeName=m1 AutoDetect=nvml", "# AutoDetect=nvml", "AutoDetect=off", "Name=gpu File=/dev/nvidia0"]
)
def test_gres_conf_that_is_none_of_ours(line: str) -> None:
    assert check(SIDE, replace(GOOD, gres_conf=line)) == ()


def test_a_drain_elsewhere_is_ours_only_where_slurm_runs_our_own_file_on_all_nodes() -> None:
    drained = replace(NODES[0], name="c1", state="IDLE+DRAIN", reason="Prolog error [root@1]")
    live = replace(GOOD, nodes=(*NODES, drained))
    found = only(live)
    assert found.code == "drained-elsewhere"
    both = only(replace(live, nodes=(*live.nodes, replace(drained, name="c2"))))
    assert both.paste.startswith("scontrol update nodename='c[1-2]' state=resume ")
    assert found.paste.startswith("scontrol update nodename=c1 state=resume   # with /usr/libexec/vgpu copied there")
    folders = {**CONFIG, "Epilog": "/etc/slurm/epilog.d/*"}
    assert check(SIDE, replace(live, config=folders, hooks={**GOOD.hooks, "Epilog": "/x/vgpu-epilog"})) == ()
    assert check(SIDE, replace(live, nodes=(*NODES, replace(drained, reason="fans")))) == ()


@pytest.mark.parametrize(
    ("uid", "mode", "is_wrong"), [(0, 0o644, False), (64030, 0o644, False), (1000, 0o644, True), (0, 0o664, True)]
)
def test_what_slurmctld_runs_is_roots_or_slurmusers_and_nobody_elses(uid: int, mode: int, is_wrong: bool) -> None:
    file = File(path="/etc/slurm/vgpu.lua", text="", uid=uid, mode=mode)
    for live in (replace(GOOD, module=file), replace(GOOD, job_submit=file)):
        found = check(SIDE, replace(live, config={**CONFIG, "SlurmUser": "slurm(64030)"}))
        assert [one.code for one in found] == ["lua-mode"] * is_wrong
        assert all(one.paste == "chown root: /etc/slurm/vgpu.lua; chmod 644 /etc/slurm/vgpu.lua" for one in found)
