"""What squeue's words about a waiting job mean: what keeps it here, its name, what a pool would look at."""

import pytest

from federation.overflow.facts import Wish
from federation.overflow.queued import FIELDS, Names, Queued, excluded, queued

NAMES = Names(cloud="cloud", wait_partition="vgpu-wait", virtual=frozenset({"cloud-gpu-1", "cloud-gpu-2"}))
PLAIN = {
    **{"JobID": "12", "ArrayJobID": "12", "ArrayTaskID": "N/A", "UserID": "1000", "Reason": "Priority"},
    **{"Partition": "gpu,vgpu-wait", "PriorityLong": "4294901757", "SubmitTime": "1000", "EligibleTime": "1000"},
    **{"StartTime": "N/A", "SchedNodes": "(null)", "NumNodes": "1", "NumTasks": "1", "NumCPUs": "2"},
    **{"Account": "(null)", "QOS": "normal", "BatchFlag": "1", "HetJobID": "N/A", "ReqNodes": ""},
    **{"Licenses": "(null)", "Reservation": "(null)", "OverSubscribe": "OK", "Container": ""},
    **{"TimeLimit": "1:00:00", "Feature": "(null)", "BurstBuffer": "(null)"},
    **{"tres-per-node": "gres:vgpu:m20:1,gres:vgpu_mem:2", "admin_comment": "asked vgpu:20gb"},
}


def read(excludes: tuple[str, ...] = (), /, **told: str) -> Queued:
    row = PLAIN | {name.replace("_per_", "-per-"): value for name, value in told.items()}
    return queued([row[name] for name in FIELDS], excludes, NAMES)


def test_a_plain_job() -> None:
    found = read()
    job = found.job
    assert (job.job_id, job.root, job.tasks, job.uid, job.priority, job.since) == (12, 12, 1, 1000, 4294901757, 1000)
    assert (job.account, job.qos, job.partitions) == ("", "normal", ("gpu", "vgpu-wait"))
    assert (job.obstacle, job.held, job.starts_at, job.wish, job.open) == ("", "", None, Wish.NONE, False)
    assert (found.wanted.gres, found.wanted.cpus, found.wanted.limit_s) == ("vgpu:m20:1", 2, 3600)
    assert found.name(1) == "12"


@pytest.mark.parametrize(
    ("told", "obstacle"),
    [
        ({"UserID": "0"}, "it is root's"),
        ({"BatchFlag": "0"}, "it is interactive"),
        ({"HetJobID": "12"}, "it is a part of a heterogeneous job"),
        ({"NumNodes": "2"}, "it asks for 2 nodes, and a job there has one"),
        ({"NumNodes": "2-4"}, "it asks for 2-4 nodes"),
        ({"NumTasks": "8"}, "it asks for 8 tasks, and a job there has one"),
        ({"ReqNodes": "n[1-2]"}, "it names its nodes"),
        ({"Feature": "a100&nvlink"}, "it asks for features"),
        ({"Licenses": "matlab:1"}, "it asks for licences"),
        ({"Reservation": "maint"}, "it is for a reservation"),
        ({"OverSubscribe": "NO"}, "it asks for whole nodes"),
        ({"Container": "/images/x"}, "it runs in a container"),
        ({"BurstBuffer": "#DW jobdw"}, "it uses a burst buffer"),
    ],
)
def test_what_has_to_run_here(told: dict[str, str], obstacle: str) -> None:
    assert read(**told).job.obstacle.startswith(obstacle)


def test_whether_it_asks_for_slices() -> None:
    assert read().job.slices
    assert not read(tres_per_node="N/A").job.slices


def test_nodes_that_it_excludes_keep_it_unless_they_are_virtual() -> None:
    assert read(("n1",)).job.obstacle == "it excludes nodes"
    found = read(("cloud-gpu-2",))
    assert (found.job.obstacle, found.kept_from) == ("", ("cloud-gpu-2",))
    assert excluded([["12", "n[1-2]"], ["13", ""], ["14", "(null)"]]) == {12: ("n1", "n2")}


@pytest.mark.parametrize("reason", ["None", "Resources", "Priority", "ReqNodeNotAvail,_UnavailableNodes:n1"])
def test_a_job_that_waits_for_room(reason: str) -> None:
    assert read(Reason=reason).job.held == ""


def test_a_job_that_waits_for_something_else() -> None:
    assert read(Reason="Dependency").job.held == "more room would not start it: Dependency"
    assert read(Reason="PartitionDown").job.held == ""
    assert read(Reason="PartitionDown", Partition="gpu").job.held.endswith("PartitionDown")
    assert read(admin_comment='fed:{"open":1,"pool":"cloud/gpu"}').job.open
    assert not read(admin_comment='fed:{"pool":"cloud/gpu"}').job.open


def test_it_waits_from_when_it_could_have_started() -> None:
    assert read(EligibleTime="5000").job.since == 5000
    assert read(EligibleTime="Unknown").job.since == 1000


def test_when_slurm_expects_it_to_start_here() -> None:
    assert read(StartTime="7000").job.starts_at == 7000.0
    assert read(StartTime="0").job.starts_at is None
    wide = "gpu,vgpu-wait,cloud"
    assert read(StartTime="7000", Partition=wide).job.starts_at is None
    assert read(StartTime="7000", Partition=wide, SchedNodes="n[1-2]").job.starts_at == 7000.0
    assert read(StartTime="7000", SchedNodes="cloud-gpu-1", Partition=wide).job.starts_at is None


@pytest.mark.parametrize(
    ("comment", "wish", "pin", "size"),
    [
        ("fed:burst=always", Wish.ALWAYS, "", 0),
        ("asked vgpu fed:burst=auto [vgpu: waits: x]", Wish.AUTO, "", 0),
        ("fed:burst=never asked vgpu", Wish.NEVER, "", 0),
        ("fed:burst=pool:cloud-gpu fed:in=20", Wish.POOL, "cloud-gpu", 20 << 20),
        ("asked fed:burst=maybe", Wish.NONE, "", 0),
    ],
)
def test_what_submit_left_on_it(comment: str, wish: Wish, pin: str, size: int) -> None:
    found = read(admin_comment=comment)
    assert (found.job.wish, found.job.pin, found.wanted.pin, found.job.input_bytes) == (wish, pin, pin, size)


def test_no_comment_is_none() -> None:
    assert read(admin_comment="(null)").comment == ""
    assert read().comment == "asked vgpu:20gb"


def test_what_a_pool_is_asked_for() -> None:
    assert read(tres_per_node="N/A", admin_comment="").wanted.gres == ""
    assert read(tres_per_node="gres/gpu:2", admin_comment="").wanted.gres == "gpu:2"


def test_what_a_job_has_counts_and_not_what_it_was_submitted_with() -> None:
    """An update of its GRES leaves those words as they are; `per task` they never were of a node."""
    changed = {"tres_per_node": "gres/vgpu:m20:2,gres/vgpu_mem:4,gres/gpu:1"}
    for words in ("asked vgpu:10gb", "asked vgpu:20gb per task"):
        assert read(admin_comment=words, **changed).wanted.gres == "vgpu:m20:2,gpu:1"
    assert read(TimeLimit="UNLIMITED").wanted.limit_s == 0
    assert read(TimeLimit="NOT_SET").wanted.limit_s == 0
    assert read(TimeLimit="2-00:00:00").wanted.limit_s == 172_800


@pytest.mark.parametrize(
    ("text", "tasks", "whole", "first_three"),
    [
        ("0-9", 10, "12_[0-9]", "12_[0-2]"),
        ("[0-9%2]", 10, "12_[0-9]", "12_[0-2]"),
        ("1,3-5,9", 5, "12_[1,3-5,9]", "12_[1,3-4]"),
        ("0-8:4", 3, "12_[0,4,8]", "12_[0,4,8]"),
        ("0-20:4,30-40:5", 9, "12_[0,4,8,12,16,20,30,35,40]", "12_[0,4,8]"),
        ("7", 1, "12_7", "12_7"),
    ],
)
def test_what_waits_of_an_array_is_named_whole_or_in_part(text: str, tasks: int, whole: str, first_three: str) -> None:
    found = read(JobID="15", ArrayTaskID=text)
    assert (found.job.root, found.job.tasks) == (12, tasks)
    assert (found.name(tasks), found.name(3)) == (whole, first_three)


def test_an_array_that_is_no_expression_has_no_name() -> None:
    assert read(ArrayTaskID="0-...").name(1) == ""
