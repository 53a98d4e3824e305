from collections.abc import Iterable, Sequence

import pytest

from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import GresItem, QueuedJob
from slurm_plugin.slurm import queue
from slurm_plugin.slurm.queue import Pool
from slurm_plugin.slurm.reading import QueueReading
from slurm_plugin.slurm.table import CELL

POOL = Pool()
QUEUED = {
    **{"JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "UserID": "1000", "PriorityLong": "100"},
    **{"State": "PENDING", "Reason": "PartitionDown", "NumNodes": "1", "NumCPUs": "4", "Partition": "gpu,vgpu-wait"},
    **{"ExcNodes": "", "Feature": "(null)", "Reservation": "(null)", "Account": "(null)", "QOS": "(null)"},
    **{"SubmitTime": "1789000000", "TimeLimit": "UNLIMITED"},
    **{"ReqNodes": "", "NodeList": "", "StartTime": "N/A", "tres-per-node": "gres:vgpu:m20:1,gres:vgpu_mem:2"},
}


def queued(**fields: str) -> Sequence[str]:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return [(QUEUED | named)[name] for name in queue.QUEUE_FIELDS]


def read(rows: Iterable[Sequence[str]]) -> tuple[QueuedJob, ...]:
    return QueueReading(POOL).jobs([CELL.join(row) for row in rows])


def run(**fields: str) -> Sequence[str]:
    base = {
        "JobID": "7",
        "UserID": "1000",
        "StartTime": "1790000000",
        "State": "RUNNING",
        "BatchFlag": "1",
        "BatchHost": "n1",
        "HetJobID": "0",
        "Requeue": "1",
        "TimeLimit": "1-00:00:10",
    }
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return [(base | {"tres-per-node": "N/A"} | named)[name] for name in queue.RUN_FIELDS]


@pytest.mark.parametrize(
    ("reason", "priority", "partition", "eligible"),
    [
        ("None", "9", "gpu,vgpu-wait", True),
        ("Resources", "9", "gpu,vgpu-wait", True),
        ("Priority", "9", "gpu,vgpu-wait", True),
        ("PartitionDown", "9", "gpu,vgpu-wait", True),
        ("PartitionDown", "9", "gpu", False),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", "9", "gpu,vgpu-wait", True),
        ("Dependency", "9", "gpu,vgpu-wait", False),
        ("BeginTime", "9", "gpu,vgpu-wait", False),
        ("JobHeldUser", "0", "gpu,vgpu-wait", False),
        ("Resources", "0", "gpu,vgpu-wait", False),
        ("QOSMaxJobsPerUserLimit", "9", "gpu,vgpu-wait", False),
        ("AssocGrpGRES", "9", "gpu,vgpu-wait", False),
        ("BadConstraints", "0", "gpu", False),
        ("JobArrayTaskLimit", "9", "gpu,vgpu-wait", False),
    ],
)
def test_who_would_start_if_there_were_slices(reason: str, priority: str, partition: str, eligible: bool) -> None:
    (job,) = read([queued(Reason=reason, PriorityLong=priority, Partition=partition)])
    assert job.eligible is eligible


def test_a_running_job_is_where_it_runs_and_waits_for_nothing() -> None:
    row = queued(
        State="RUNNING", NodeList="n[1-2]", ReqNodes="n[1-2]", StartTime="1790000000", Reason="None", Partition="gpu"
    )
    (job,) = read([row])
    assert (job.on_nodes, job.wanted_nodes, job.started_at, job.eligible) == (("n1", "n2"), (), 1790000000, False)


def test_when_a_run_ends_is_known_while_it_runs_under_a_limit() -> None:
    runs = queue.job_runs([run(), run(State="PENDING"), run(TimeLimit="UNLIMITED"), run(TimeLimit="365-00:00:00")])
    assert [one.limit_s for one in runs] == [86_410, 86_410, 0, 0]
    assert [one.ends_at for one in runs] == [1_790_086_410, 0, 0, 0]


@pytest.mark.parametrize(
    ("batch", "het", "host"), [("1", "0", "n1"), ("1", "N/A", "n1"), ("1", "7", "n1"), ("1", "6", ""), ("0", "0", "")]
)
def test_where_a_jobs_own_batch_script_runs(batch: str, het: str, host: str) -> None:
    """A part of a heterogeneous job has none but its leader."""
    (found,) = queue.job_runs([run(BatchFlag=batch, HetJobID=het)])
    assert found.batch_host == host


def test_an_expected_start_is_no_start() -> None:
    (job,) = read([queued(StartTime="1790000000")])
    assert job.started_at == 0
    (waiting,) = queue.job_runs([run(State="PENDING")])
    assert waiting.key.started_at == 0
    assert not queue.holds_something(waiting)


@pytest.mark.parametrize(
    ("text", "running", "tasks", "limit"),
    [
        ("N/A", 0, 1, 0),
        ("5", 0, 1, 0),
        ("0-200", 0, 201, 0),
        ("[0-9,20-28:2]", 0, 15, 0),
        ("0-200%3", 0, 3, 3),
        ("[0-200%3]", 2, 1, 3),
        ("0-200%3", 3, 0, 3),
        ("0-1%50", 0, 2, 50),
        ("0-3,7,9-...", 0, 6, 0),
    ],
)
def test_elements_that_may_start_now(text: str, running: int, tasks: int, limit: int) -> None:
    beside = [
        queued(JobID=str(100 + nth), ArrayTaskID=str(300 + nth), State="RUNNING", StartTime="1790000000")
        for nth in range(running)
    ]
    array = read([queued(ArrayTaskID=text), *beside])[0]
    assert (array.tasks, array.array_limit, array.eligible) == (tasks, limit, tasks > 0)


def test_an_arrays_running_elements_count_against_its_own_limit() -> None:
    element = queued(JobID="8", ArrayTaskID="0", State="RUNNING", NodeList="n1", StartTime="1790000000")
    rest = queued(ArrayTaskID="1-200%1")
    running, waiting = read([element, rest])
    assert (running.tasks, waiting.tasks, waiting.eligible) == (1, 0, False)


def test_only_jobs_of_the_pools_gres_count() -> None:
    rows = [
        queued(tres_per_node=text)
        for text in ("N/A", "gres:gpu:2", "gres:vgpu_mem:2", "gres:vgpu:a:b:c", "gres:avgpu:1")
    ]
    assert read(rows) == ()


def test_an_unreadable_request_hides_no_other_run() -> None:
    odd, plain = queue.job_runs([run(tres_per_node="gres:x:a:b:c"), run(JobID="8", tres_per_node="gres/vgpu:m20:1")])
    assert odd.gres == ()
    assert plain.gres == (GresItem(name="vgpu", type="m20"),)


@pytest.mark.parametrize(
    ("batch", "requeue", "could"), [("1", "1", True), ("1", "0", False), ("0", "1", False), ("3", "1", True)]
)
def test_only_a_batch_job_can_be_requeued(batch: str, requeue: str, could: bool) -> None:
    (one,) = queue.job_runs([run(BatchFlag=batch, Requeue=requeue)])
    assert one.requeue is could


def test_what_is_no_number_is_an_error_not_a_zero() -> None:
    with pytest.raises(SlurmError, match="number"):
        queue.job_runs([run(UserID="root")])
    with pytest.raises(SlurmError, match="host list"):
        read([queued(ReqNodes="n[1-")])


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (("7", "7", "N/A", "N/A"), "7"),
        (("7", "7", "N/A", "0"), "7"),
        (("7", "5", "2", "N/A"), "5_2"),
        (("7", "7", "9", "N/A"), "7_9"),
        (("7", "7", "0-3", "N/A"), "7"),
        (("7", "0", "N/A", "6"), "6"),
        (("8", "7", "9", "N/A"), None),
    ],
)
def test_how_one_job_is_named_so_that_no_other_goes(row: Sequence[str], name: str | None) -> None:
    where = (row[0], "1000", "1790000000", "RUNNING", *row[1:])
    assert queue.target([where], RunKey(job_id=7, started_at=1790000000, uid=1000)) == name


@pytest.mark.parametrize(
    ("uid", "start", "state"),
    [
        ("1000", "1790000099", "RUNNING"),
        ("1001", "1790000000", "RUNNING"),
        ("1000", "1790000000", "PENDING"),
        ("1000", "1790000000", "COMPLETING"),
        ("1000", "1790000000", "CANCELLED"),
    ],
    ids=["another run", "another user's job under the same id", "back in the queue", "ending", "cancelled"],
)
def test_a_run_that_is_over_has_no_name(uid: str, start: str, state: str) -> None:
    row = ("7", uid, start, state, "7", "N/A", "N/A")
    assert queue.target([row], RunKey(job_id=7, started_at=1790000000, uid=1000)) is None


def test_a_request_that_can_not_be_read_is_not_to_ask_for_nothing() -> None:
    rows = [run(JobID="6"), run(tres_per_node="gres:x:a:b:c")]
    starting = [[*row, "0", ""] for row in rows]
    with pytest.raises(SlurmError, match="is not a GRES"):
        queue.run_of(starting, 7)
    assert queue.run_of(starting, 8) is None
    assert queue.run_of(starting, 6) == queue.job_runs(rows)[0]


@pytest.mark.parametrize(
    ("comment", "elsewhere"),
    [
        ("", False),
        ("asked vgpu:20gb fed:burst=always", False),
        ('asked vgpu fed:{"job":"x","attempt":1,"code":"0:0"}', False),
        ('asked vgpu fed:{"open":1,"job":"x"} [vgpu: waits]', True),
        ('a\nb fed:{"open":1}', True),
    ],
)
def test_a_job_that_may_run_at_another_site_is_told_by_the_note_on_it(comment: str, elsewhere: bool) -> None:
    found = queue.run_of([[*run(), "1700000000", comment]], 7)
    assert found is not None
    assert (found.elsewhere, found.submitted_at) == (elsewhere, 1700000000)


def test_steps_by_task_and_by_node() -> None:
    rows = [
        ("7.0", "7", "gres/vgpu:m20:1", "cpu=2,cpu:2", "2", "n1"),
        ("7.1", "7", "(null)", "cpu=2,gres/vgpu:m20:1,cpu:2", "5", "n[1-2]"),
        ("7.2", "7", "(null)", "cpu=2", "1", "n1"),
        ("7.batch", "7", "(null)", "(null)", "1", "n1"),
        ("6_1.0", "8", "gres/vgpu:m20:1", "(null)", "1", "n1"),
    ]
    m20 = GresItem(name="vgpu", type="m20")
    assert queue.step_gres(rows, 7) == {
        "7.0": (m20,),
        "7.1": (GresItem(name="vgpu", type="m20", count=3),),
        "7.2": (),
        "7.batch": (),
    }
    assert queue.step_gres(rows, 8) == {"8.0": (m20,)}


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("(null)", ()),
        ("a100", ({"a100"},)),
        ("a100&nvlink", ({"a100", "nvlink"},)),
        ("a100|h100", ({"a100"}, {"h100"})),
        ("a100*2", ()),
        ("[a100|h100]", ()),
        ("a&b|c", ()),
        ("(a|b)&c", ()),
    ],
)
def test_features_are_what_a_node_must_have_or_not_known(text: str, features: Sequence[set[str]]) -> None:
    (job,) = read([queued(Feature=text)])
    assert job.features == tuple(frozenset(one) for one in features)


def test_where_a_waiting_job_may_not_run() -> None:
    (job,) = read([queued(ExcNodes="n[1-2]", Reservation="maint")])
    assert (job.excluded_nodes, job.reserved) == (("n1", "n2"), True)
    (plain,) = read([queued()])
    assert (plain.excluded_nodes, plain.reserved, plain.features) == ((), False, ())


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("UNLIMITED", 0),
        ("NOT_SET", 0),
        ("INVALID", 0),
        ("5:00", 300),
        ("10:00:00", 36_000),
        ("2-01:00:05", 176_405),
        ("365-00:00:00", 0),
    ],
)
def test_time_limit(text: str, limit_s: int) -> None:
    (waiting,) = read([queued(TimeLimit=text)])
    assert (waiting.limit_s, waiting.ends_at) == (limit_s, 0)
    (running,) = read([queued(TimeLimit=text, State="RUNNING", StartTime="1790000000")])
    assert running.ends_at == (1_790_000_000 + limit_s if limit_s else 0)


def test_whose_demand_it_is_and_how_old() -> None:
    (job,) = read([queued(Account="physics", QOS="high")])
    assert (job.account, job.qos, job.submitted_at) == ("physics", "high", 1_789_000_000)
    (plain,) = read([queued()])
    assert (plain.account, plain.qos) == ("", "")


def test_a_row_that_says_what_it_said_before_is_the_same_job() -> None:
    reading = QueueReading(POOL)
    rows = [queued(JobID=str(job_id)) for job_id in range(1, 4)]
    before = reading.jobs([CELL.join(row) for row in rows])
    rows[1] = queued(JobID="2", PriorityLong="5")
    after = reading.jobs([CELL.join(row) for row in [*rows[1:], queued(JobID="9")]])
    assert [job.job_id for job in after] == [2, 3, 9]
    assert after[0].priority == 5
    assert after[1] is before[2]


def test_a_limited_arrays_siblings_are_counted_anew_each_time() -> None:
    reading = QueueReading(POOL)
    array = CELL.join(queued(ArrayTaskID="1-9%2"))
    element = CELL.join(queued(JobID="8", ArrayTaskID="0", State="RUNNING", NodeList="n1", StartTime="1790000000"))
    assert [job.tasks for job in reading.jobs([array])] == [2]
    assert [job.tasks for job in reading.jobs([array, element])] == [1, 1]
    assert [job.tasks for job in reading.jobs([array])] == [2]


@pytest.mark.parametrize(
    ("state", "name"), [("PENDING", "7"), ("REQUEUE_HOLD", "7"), ("RUNNING", None), ("FAILED", None)]
)
def test_a_job_that_waits_is_named_by_a_run_that_has_not_started(state: str, name: str | None) -> None:
    row = ["7", "1000", "N/A" if state != "RUNNING" else "1790000000", state, "7", "N/A", "N/A"]
    assert queue.target([row], RunKey(job_id=7, started_at=0, uid=1000)) == name


@pytest.mark.parametrize(("text", "first"), [("N/A", -1), ("7", 7), ("[12-40:2,99%3]", 12), ("[3,5]", 3)])
def test_the_first_element_of_an_array_that_waits(text: str, first: int) -> None:
    (array,) = read([queued(ArrayTaskID=text)])
    assert array.first_task == first
    (running,) = read([queued(ArrayTaskID="7", State="RUNNING", StartTime="1790000000")])
    assert running.first_task == -1


@pytest.mark.parametrize(
    ("text", "elements"),
    [("7", [7]), ("N/A", []), ("[2-5,9%2]", [2, 3, 4, 5, 9]), ("1-9:4", [1, 5, 9]), ("[0,3%1]", [0, 3]), ("[x]", [])],
)
def test_which_elements_an_array_expression_stands_for(text: str, elements: list[int]) -> None:
    assert [nth for nth in range(12) if queue.has_element(text, nth)] == elements
    (job,) = read([queued(ArrayTaskID=text)])
    assert job.elements == ("" if text == "N/A" else text)
