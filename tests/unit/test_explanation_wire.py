"""An explanation is the same after the wire."""

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.explanation import Blocker, Change, Explanation, Instead, Serves, Why
from slurm_plugin.explanation_wire import from_wire, to_wire

NUMBER = st.integers(0, (1 << 31) - 1)
TEXT = st.text(max_size=5)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
TIME = st.floats(0, 1e10)
BLOCKER = st.builds(Blocker, job_id=NUMBER, node=TEXT, gpus=st.lists(NUMBER, max_size=2).map(tuple), ends_at=NUMBER)
CHANGE = st.builds(Change, node=TEXT, gpu=NUMBER, creates=TEXTS, why=TEXT, at=TIME)
NUMBERS = (
    "job_id",
    "uid",
    "count",
    "nodes",
    "tasks",
    "priority",
    "submitted_at",
    "idle",
    "placeable",
    "ahead",
    "strikes",
    "withheld",
    "kept",
    "gathered",
)
EXPLANATION = st.builds(
    Explanation,
    **dict.fromkeys(NUMBERS, NUMBER),
    **dict.fromkeys(("gres_class", "reason", "limit", "planner"), TEXT),
    **dict.fromkeys(("profiles", "closed"), TEXTS),
    why=st.sampled_from(Why),
    **dict.fromkeys(("back_at", "again_at"), TIME),
    blockers=st.lists(BLOCKER, max_size=2).map(tuple),
    change=st.none() | CHANGE,
    instead=st.lists(st.builds(Instead, gres_class=TEXT, idle=NUMBER), max_size=2).map(tuple),
    serves=st.lists(st.builds(Serves, layout=TEXT, hosts=TEXTS), max_size=2).map(tuple),
)


@given(EXPLANATION)
def test_nothing_is_lost_on_the_wire(one: Explanation) -> None:
    assert from_wire(to_wire(one)) == one
