"""What a person sees of the pool."""

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.cli.convert import plan_view, pool_view
from slurm_plugin.cli.screen import CELL_MAX, LINE_MAX, age, fold, picture, safe, table
from slurm_plugin.cli.text import (
    explanation_lines,
    gpu_lines,
    job_lines,
    node_lines,
    plan_lines,
    slice_note,
    status_lines,
)
from slurm_plugin.cli.view import job_view
from slurm_plugin.explanation import LINES, Explanation, Instead, Why
from slurm_plugin.mig.products import product_named
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from tests.unit.cli.pools import GPU, instance, status


def names(uid: int) -> str:
    return {0: "root"}.get(uid, str(uid))


def test_status_says_when_the_pool_is_only_observed() -> None:
    pool = status()
    pool.mode = "observe"
    assert status_lines(pool_view(pool), str, 2000.0)[0].endswith(", only observes")


def test_status_names_slices_that_a_job_holds_and_does_not_use() -> None:
    pool = status()
    pool.nodes[0].inventory.gpus[0].instances[0].unused_since = 1000
    assert not [line for line in status_lines(pool_view(pool), names, 1500) if line.startswith("unused")]
    assert "unused: job 12 of root on n1 has run nothing on its 3g.40gb for 2h46m" in status_lines(
        pool_view(pool), names, 11000
    )


def test_status_shows_each_gpu_with_its_layout_and_the_queue() -> None:
    lines = status_lines(pool_view(status()), names, now=560)
    assert lines[0] == (
        "pool hpc: 1 node, 3 slices (1 busy, 1 idle, 1 withheld); controller 0.1.0 up 1m00s, last pass 4 ms"
    )
    assert lines[3] == "n1    MIXED  0    [####][-][~]..  3g.40gb job 12; 1g.10gb as m10; 1g.10gb withheld"
    assert lines[-1] == "20       4242  99        1      vgpu:m20:2  PartitionDown"


def test_status_groups_equal_slices_and_names_faults_and_absent_agents() -> None:
    pool = status()
    node = pool.nodes[0]
    node.agent_connected = False
    node.problems.append("stuck in its prolog: job 9")
    gpu = node.inventory.gpus[0]
    gpu.fault = "fell off the bus"
    gpu.instances.extend([instance("1g.10gb", 6, 1, 13, uuid="MIG-d")])
    text = "\n".join(status_lines(pool_view(pool), names, now=560))
    assert "agent away; FAULT: fell off the bus; 3g.40gb job 12; 3x 1g.10gb unknown" in text
    assert text.endswith("problem: n1: stuck in its prolog: job 9")


def test_a_node_without_gpus_says_so() -> None:
    pool = pool_pb2.PoolStatus(pool="p", nodes=[pool_pb2.NodeStatus(node="n9", agent_connected=True)])
    assert "no GPU reported" in "\n".join(status_lines(pool_view(pool), names, now=0))


def test_a_job_is_shown_with_everything_that_names_its_slice() -> None:
    job = job_view(pool_view(status()), 12)
    assert job is not None
    lines = job_lines(job, names, now=1060)
    assert lines[0] == "job 12 of root on n1: vgpu:m40:1, for 1m00s, isolation mig+modes+cgroup"
    assert lines[2].split() == ["0", "3g.40gb", "0-3", "1/0", "MIG-a", "NVIDIA", "H100", "80GB", "HBM3"]


def test_a_job_without_a_slice_is_told_apart_from_an_unknown_one() -> None:
    pool = pool_view(status())
    none = job_view(pool, 13)
    assert none is not None
    assert job_lines(none, names, now=1060) == ["job 13 of 4242 on n1: no slice, for 1m00s, isolation none"]
    assert job_view(pool, 99) is None


def test_a_pending_and_a_waiting_job_say_what_they_wait_for() -> None:
    raw = status()
    raw.nodes[0].inventory.waiting.append(pool_pb2.Waiting(job_id=20, gres_class="m20", count=2, since=1))
    job = job_view(pool_view(raw), 20)
    assert job is not None
    first, second = job_lines(job, names, now=0)
    assert first == "job 20: its prolog waits for a slice on n1"
    assert "waits for vgpu:m20:2, priority 99, Slurm's reason PartitionDown" in second


def test_a_node_shows_counts_slices_and_grants() -> None:
    text = "\n".join(node_lines(pool_view(status()).nodes[0], names))
    assert "GresUsed vgpu:m40:1,vgpu:m10:0,vgpu:pad:0,vgpu_mem:4" in text
    assert "13   4242  none   0       -" in text


def test_a_gpu_marks_what_is_half_made_or_foreign() -> None:
    raw = status()
    gpu = raw.nodes[0].inventory.gpus[0]
    del gpu.instances[:]
    gpu.instances.extend(
        [instance("1g.10gb", 0, 1, 7, ci=-1), instance("3g.40gb", 4, 4, 2, uuid="MIG-f", foreign=True)]
    )
    shown = pool_view(raw).nodes[0].gpus[0]
    assert picture(shown) == "[!]...[xxxx]"
    assert "half-made" in gpu_lines(shown)[2]
    assert "7/-" in gpu_lines(shown)[2]
    assert "foreign" in gpu_lines(shown)[3]


def test_a_gpu_that_differs_from_the_table_of_products_says_where() -> None:
    raw = status()
    gpu = raw.nodes[0].inventory.gpus[0]
    del gpu.profiles[:]
    for one in product_named("h100-80gb").profiles.values():
        gpu.profiles.add(
            name=one.name,
            gi_profile_id=one.gi_profile_id,
            compute_slices=one.compute_slices,
            memory_mib=one.memory_mib,
            starts=one.starts,
            size=one.size,
        )
    assert pool_view(raw).nodes[0].gpus[0].differs == ()
    gpu.profiles[0].memory_mib *= 2
    shown = pool_view(raw).nodes[0].gpus[0]
    (line,) = shown.differs
    assert line.startswith(f"{gpu.profiles[0].name}: {gpu.profiles[0].memory_mib} MiB")
    assert gpu_lines(shown)[-1] == f"  differs from the table: {line}"
    gpu.name = "a model that nobody knows"
    assert pool_view(raw).nodes[0].gpus[0].differs == ()


def test_a_gpu_whose_mig_is_off_has_no_picture() -> None:
    raw = status()
    raw.nodes[0].inventory.gpus[0].mig = "disabled"
    assert picture(pool_view(raw).nodes[0].gpus[0]) == "(MIG disabled)"


def test_a_gpu_that_could_never_be_read_is_not_said_to_lack_mig() -> None:
    raw = status()
    gpu = raw.nodes[0].inventory.gpus[0]
    gpu.uuid, gpu.mig = "", "unsupported"
    assert picture(pool_view(raw).nodes[0].gpus[0]) == "(unreadable)"


def test_a_plan_lists_every_gpu_with_its_reason() -> None:
    shape = pool_pb2.SliceShape
    reply = pool_pb2.PlanReply(
        gpus=[
            pool_pb2.GpuPlan(
                node="n1",
                gpu="GPU-1",
                index=0,
                action="keep",
                keep=[shape(profile="3g.40gb", start=0)],
                why="as wanted",
            ),
            pool_pb2.GpuPlan(
                node="n1",
                gpu="GPU-2",
                index=1,
                action="change",
                destroy=[shape(profile="1g.10gb", start=0)],
                create=[shape(profile="2g.20gb", start=0)],
                why="layout",
            ),
            pool_pb2.GpuPlan(node="n2", gpu="GPU-3", index=0, action="leave", why="not in pool.yaml"),
        ],
        problems=["n3 has no agent"],
    )
    assert plan_lines(plan_view(reply)) == [
        "NODE  GPU  ACTION  LAYOUT                 WHY",
        "n1    0    keep    3g.40gb@0              as wanted",
        "n1    1    change  -1g.10gb@0 +2g.20gb@0  layout",
        "n2    0    leave   (unchanged)            not in pool.yaml",
        "",
        "3 GPUs: 1 change, 1 keep, 1 leave",
        "problem: n3 has no agent",
    ]


@given(st.text(max_size=300))
def test_no_text_from_outside_can_steer_the_terminal_or_forge_a_line(text: str) -> None:
    shown = safe(text)
    assert shown.isprintable()
    assert len(shown) <= CELL_MAX


def test_hostile_names_stay_in_their_cell() -> None:
    raw = status()
    raw.nodes[0].slurm_state = "IDLE\nn2  FORGED\x1b[2J"
    lines = status_lines(pool_view(raw), names, now=0)
    assert sum("FORGED" in line for line in lines) == 1
    assert all(line.isprintable() for line in lines)


ROWS = st.lists(st.tuples(st.text(max_size=9), st.text(max_size=90)), max_size=5)


@given(ROWS)
def test_a_table_has_one_line_a_row(rows: list[tuple[str, str]]) -> None:
    assert len(table(("A", "B"), rows)) == len(rows) + 1


@settings(deadline=None)
@given(rows=ROWS, width=st.integers(40, 120))
def test_a_table_fits_the_terminal_and_loses_nothing(rows: list[tuple[str, str]], width: int) -> None:
    shown = table(("A", "B"), rows, width)
    assert all(len(line) <= width for line in shown)
    assert sorted("".join(shown).replace(" ", "")) == sorted("".join(table(("A", "B"), rows)).replace(" ", ""))


def test_what_is_too_wide_goes_on_in_its_column() -> None:
    assert table(("GPU", "WHY"), [("n1:0", "three two-three one"), ("n1:1", "-")], width=22) == [
        "GPU   WHY",
        "n1:0  three two-three",
        "      one",
        "n1:1  -",
    ]


def test_a_line_goes_on_further_in() -> None:
    assert list(fold(["a line of words and more", "short"], 16)) == ["a line of words", "  and more", "short"]
    assert list(fold(["a line of words"], 0)) == ["a line of words"]


def test_ages() -> None:
    assert [age(s) for s in (-1, 0, 59.9, 60, 3599, 3600, 86399, 86400 * 4 + 3600 * 3)] == [
        "0s",
        "0s",
        "59s",
        "1m00s",
        "59m59s",
        "1h00m",
        "23h59m",
        "4d03h",
    ]


def test_slices_of_a_node_whose_agent_is_away_are_unknown_and_not_free() -> None:
    pool = status()
    pool.nodes[0].agent_connected = False
    del pool.nodes[0].inventory.grants[:]  # a controller that has just started knows of none
    (gpu,) = pool_view(pool).nodes[0].gpus
    assert picture(gpu) == "[????][?][?].."
    assert {slice_note(piece) for piece in gpu.slices} == {"3g.40gb unknown", "1g.10gb unknown"}


def test_an_explanation_is_a_few_lines_that_nothing_can_forge() -> None:
    hostile = Explanation(
        job_id=5,
        uid=1000,
        gres_class="a\nb",
        count=1,
        nodes=1,
        tasks=1,
        priority=9,
        submitted_at=0,
        why=Why.STARTING,
        reason="x\x1b[2J\ny",
        instead=tuple(Instead(gres_class=f"c{nth}", idle=nth) for nth in range(500)),
    )
    shown = explanation_lines(hostile, names, str)
    assert len(shown) <= LINES
    assert all(line.isprintable() and len(line) <= LINE_MAX for line in shown)
    assert shown[0] == r"job 5 of 1000 asks for vgpu:a\nb:1, priority 9"


def test_a_job_that_is_passed_over_is_marked_in_the_queue() -> None:
    raw = status()
    raw.pending[0].back_at = 500.0
    shown = status_lines(pool_view(raw), names, now=0, clock=lambda at: f"t{at:.0f}")
    assert sum("; passed over until t500" in line for line in shown) == 1


def test_a_gpu_of_which_something_is_wrong_is_named_by_its_index_too() -> None:
    raw = status()
    raw.nodes[0].problems.extend([f"GPU {GPU}: change failed: in use", "GPU GPU-other: change failed: gone"])
    assert pool_view(raw).nodes[0].problems[-2:] == (
        f"GPU 0 ({GPU}): change failed: in use",
        "GPU GPU-other: change failed: gone",
    )
