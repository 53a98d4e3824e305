"""What of a Slurm job crosses, and that nothing a user can write there is taken for more than it is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import Refused
from federation.model.spec import Array
from federation.overflow.burst import SlurmJob
from federation.overflow.frames import Hello, Limit
from federation.overflow.request import Asked, Files, Rules, asked, files_of, spec_of

RULES = Rules(environment=("LANG", "OMP_*"), pool="cloud/gpu", shared_files=False)
JOB = SlurmJob(job_id=42, uid=1001, state="RUNNING", submitted_at=5, started_at=9, limit_s=3600)
SCRIPT = b"#!/bin/sh\n"
HELLO = Hello(job_id=42, node="cloud-gpu-1", folder=b"/home/a b", umask=0o077, joined=True, script=SCRIPT)
IN, OUT = b"_SLURM_SPANK_OPTION_vgpu_burst_stage_in", b"_SLURM_SPANK_OPTION_vgpu_burst_stage_out"


@pytest.mark.parametrize(
    ("row", "wants"),
    [
        (
            ("42", "2", "500M", "cpu=2,mem=1000M,node=1,billing=2", "N/A", "phys"),
            Asked(cpus=2, memory_mib=1000, account="phys"),
        ),
        (("42", "1", "0", "cpu=1,mem=4000000M,node=1", "N/A", "(null)"), Asked()),
        (("42", "1", "1G", "cpu=1,mem=1.50G,node=1", "", ""), Asked(memory_mib=1536)),
        (
            ("42", "1", "0", "cpu=1", "gres:vgpu:m20:2,gres:vgpu_mem:4", "a"),
            Asked(gres="vgpu:m20:2", account="a"),
        ),
        (("42", "1", "0", "cpu=1", "gres/vgpu:1g.10gb:1", "a"), Asked(gres="vgpu:1g.10gb:1", account="a")),
        (("42", "1", "0", "cpu=1", "N/A", "a"), Asked(account="a")),
    ],
)
def test_what_slurm_says_that_a_job_asked_for(row: tuple[str, ...], wants: Asked) -> None:
    assert asked(row) == wants


def test_a_job_takes_what_it_had_with_it() -> None:
    env = ((b"SLURM_JOB_NAME", b"a\n\xff"), (b"LANG", b"C"), (b"SECRET", b"1"), (b"SLURM_JOB_ID", b"42"))
    hello = replace(HELLO, env=env, args=(b"-n", b""), limits=(Limit(name="NOFILE", soft=9, hard=-1),))
    spec = spec_of(hello, JOB, Asked(cpus=2, memory_mib=7, gres="vgpu:20gb", account="phys"), "ann", RULES)
    assert (spec.user, spec.account, spec.name, spec.pin) == ("ann", "phys", b"a\n\xff", "cloud/gpu")
    assert (spec.cpus, spec.memory_mib, spec.time_limit_s, spec.gres) == (2, 7, 3600, "vgpu:20gb")
    assert (spec.script, spec.args, spec.env) == (SCRIPT, (b"-n", b""), ((b"LANG", b"C"),))
    batch = spec.batch
    assert batch is not None
    assert (batch.job_id, batch.joined, batch.umask, batch.limits) == (42, True, 0o077, (("NOFILE", 9),))
    assert (batch.array, batch.folder, batch.stdin) == (None, b"", b"")


def test_what_export_named_crosses_and_what_may_never_does_not() -> None:
    env = (
        (b"SLURM_EXPORT_ENV", b"ALL,DATA=1,LD_PRELOAD=x,SLURM_CONF"),
        (b"DATA", b"1"),
        (b"OTHER", b"2"),
        (b"LD_PRELOAD", b"x"),
        (b"SLURM_CONF", b"/x"),
    )
    assert spec_of(replace(HELLO, env=env), JOB, Asked(), "ann", RULES).env == ((b"DATA", b"1"),)


def test_a_task_of_an_array_knows_its_place() -> None:
    env = tuple(
        (b"SLURM_ARRAY_TASK_" + name, b"%d" % value) for name, value in ((b"COUNT", 3), (b"MIN", 1), (b"MAX", 7))
    )
    job = replace(JOB, array_id=40, task_id=4)
    batch = spec_of(replace(HELLO, env=(*env, (b"SLURM_ARRAY_TASK_STEP", b"x"))), job, Asked(), "ann", RULES).batch
    assert batch is not None
    assert batch.array == Array(job_id=40, task_id=4, count=3, lowest=1, highest=7, step=1)


def test_only_what_sbatch_has_checked_names_files() -> None:
    names = (b"SLURM_SPANK_OPTION_vgpu_burst_stage_in", b"_SLURM_SPANK_OPTION_vgpu_x_stage_in", IN + b"2", b"x" + IN)
    assert files_of(replace(HELLO, env=tuple((name, b"data") for name in names))) == Files()


def test_a_pool_that_shares_the_files_stages_nothing_and_runs_where_the_job_was() -> None:
    hello = replace(HELLO, env=((IN, b"data"), (OUT, b"out/*")))
    assert spec_of(hello, JOB, Asked(), "ann", RULES).outputs == (b"out/*",)
    shared = spec_of(hello, JOB, Asked(), "ann", replace(RULES, shared_files=True))
    assert shared.batch is not None
    assert (shared.outputs, shared.batch.folder) == ((), b"/home/a b")


def test_patterns_have_commas_between_them_and_lead_nowhere_else() -> None:
    found = files_of(replace(HELLO, env=((IN, b"a b,c/*,,d?e"), (OUT, b"out"))))
    assert (found.inputs, found.outputs) == ((b"a b", b"c/*", b"d?e"), (b"out",))
    for wrong in (b"/etc/shadow", b"../x", b"a/../b", b"a//b", b"a,/b", b"x\0y"):
        with pytest.raises(Refused):
            files_of(replace(HELLO, env=((IN, wrong),)))
    with pytest.raises(Refused, match="more than 100 patterns"):
        files_of(replace(HELLO, env=((OUT, b"a," * 101),)))


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (b"#SBATCH --signal=USR1@60", "USR1@60"),
        (b"#SBATCH -n1 --signal USR2 # soon", "USR2"),
        (b"#SBATCH --signal=R:10@30", "10@30"),
        (b"#SBATCH --signal=B:USR1@60", ""),
        (b"echo\n#SBATCH --signal=USR1@60", ""),
        (b"#SBATCH --signal=USR1@60;id", ""),
    ],
)
def test_a_warning_of_the_jobs_steps_is_passed_on(line: bytes, warning: str) -> None:
    spec = spec_of(replace(HELLO, script=SCRIPT + line + b"\ntrue\n"), JOB, Asked(), "ann", RULES)
    assert spec.batch is not None
    assert spec.batch.warning == warning


@pytest.mark.parametrize(
    ("said", "warning"), [("USR1@60", "USR1@60"), ("R:10@5", "10@5"), ("B:USR1@60", ""), ("RB:USR1", ""), ("", "USR2")]
)
def test_the_command_line_has_the_last_word_about_a_warning(said: str, warning: str) -> None:
    script = SCRIPT + b"#SBATCH --signal=USR2\n"
    spec = spec_of(replace(HELLO, script=script), JOB, Asked(warning=said), "ann", RULES)
    by_variable = replace(HELLO, script=script, env=((b"SBATCH_SIGNAL", said.encode()),))
    assert spec_of(by_variable, JOB, Asked(), "ann", RULES) == spec
    assert spec.batch is not None
    assert spec.batch.warning == warning


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50)), max_size=5), st.binary(max_size=200))
def test_a_job_of_any_bytes_has_a_spec_or_is_refused(env: list[tuple[bytes, bytes]], script: bytes) -> None:
    hello = replace(HELLO, env=tuple(env), script=script)
    try:
        spec_of(hello, JOB, Asked(), "ann", RULES)
        files_of(hello)
    except Refused:
        return
