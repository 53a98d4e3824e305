"""`vgpu status`, `plan` and `apply` as a user runs them: a process of its own, over the real link."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_plugin.errors import ConfigError, LinkError, RequestError
from slurm_plugin.link.munge import Munge
from slurm_plugin.link.server import Caller, Send, serve
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.integration.link.munged import munged
from tests.unit.cli.pools import status

ROOT = frozenset({0})
VGPU = (sys.executable, "-c", "from slurm_plugin.cli.main import main; main()")
PATIENCE_S = 60.0

POOL_YAML = """version: 1
pool: hpc
partitions: [gpu]
nodes:
  - {{hosts: n1, layout: {{1g.10gb: 7}}}}
controller:
  listen: 0.0.0.0:{port}
  munge_socket: {socket}
  catalogue: {socket}.none
"""


def plan(action: str) -> pb.PlanReply:
    return pb.PlanReply(gpus=[pb.GpuPlan(node="n1", gpu="GPU-1", index=0, action=action, why="as told")])


@dataclass
class Controller:
    """Tells of one pool; a plan is done after `steps` questions."""

    steps: int = 0
    asked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    paused: bool = False
    away: bool = False

    async def session(self, caller: Caller, received: AsyncIterator[pb.FromAgent], send: Send) -> None:
        raise LinkError("no agent is expected here")

    async def status(self, caller: Caller) -> pb.PoolStatus:
        if self.away:
            raise LinkError("munged is away")
        told = status()
        told.nodes[0].problems.extend(self.problems)
        return told

    async def plan(self, caller: Caller, pool_yaml: str) -> pb.PlanReply:
        self.asked.append(pool_yaml)
        if "wrong" in pool_yaml:
            raise ConfigError("pool.yaml:3: unknown key 'wrong'", hint="did you mean 'pool'?")
        self.steps -= 1
        return plan("keep" if self.steps <= 0 else "change")

    async def apply(self, caller: Caller) -> pb.ApplyReply:
        self.asked.append("apply")
        return pb.ApplyReply(plan=plan("change"))

    async def explain(self, caller: Caller, job_id: int, element: int | None) -> pb.ExplainReply:
        if element == 0:  # it is job 12 itself that runs
            return pb.ExplainReply(job_id=job_id, why="runs")
        if job_id == 99:
            raise RequestError("job 99 is another user's", hint="root and SlurmUser may ask about every job")
        blocker = pb.Blocker(job_id=7, node="n1", gpus=[0])
        return pb.ExplainReply(job_id=job_id, gres_class="3g.40gb", count=1, nodes=1, why="busy", blockers=[blocker])

    async def pause(self, caller: Caller, wanted: bool, reason: str) -> pb.PauseReply:
        changed, self.paused = wanted != self.paused, wanted
        self.asked.append(reason)
        return pb.PauseReply(pause=pb.Pause(since=1000.0, uid=0, reason=reason) if wanted else None, changed=changed)

    async def history(self, caller: Caller, node: str, since: float, limit: int) -> pb.HistoryReply:
        self.asked.append(f"{node} {since:.0f} {limit}")
        entry = pb.HistoryEntry(at=1000.0, what="changed", node="n1", gpu="GPU-1", created=["3g.40gb@0"], why="as told")
        return pb.HistoryReply(entries=[entry], more=True) if node != "n9" else pb.HistoryReply()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    controller: Controller
    config: Path

    async def vgpu(self, *argv: str) -> Ended:
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "VGPU_POOL_CONFIG": str(self.config)}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*VGPU, *argv, env=env, stdout=pipe, stderr=pipe)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        return Ended(code=process.returncode or 0, out=out.decode(), err=err.decode())


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture
async def site(socket: Path, tmp_path: Path) -> AsyncIterator[Site]:
    controller = Controller()
    server, port = await serve(controller, listen="127.0.0.1:0", munge=Munge(socket), trusted=ROOT)
    config = tmp_path / "pool.yaml"
    config.write_text(POOL_YAML.format(port=port, socket=socket))
    try:
        yield Site(controller=controller, config=config)
    finally:
        await server.stop(None)


async def test_status_reaches_the_controller_that_pool_yaml_names(site: Site) -> None:
    text, document = await asyncio.gather(site.vgpu("status"), site.vgpu("status", "--json"))
    assert (text.code, text.err) == (0, "")
    assert "[####][-][~].." in text.out
    assert json.loads(document.out)["pool"] == "hpc"


async def test_plan_sends_the_file_and_apply_dry_run_changes_nothing(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("version: 1  # other\n")
    ended = [
        await site.vgpu("plan"),
        await site.vgpu("plan", "--policy", str(other)),
        await site.vgpu("apply", "--dry-run"),
    ]
    assert [(one.code, one.err) for one in ended] == [(0, "")] * 3
    assert site.controller.asked == [site.config.read_text(), other.read_text(), site.config.read_text()]
    assert "as told" in ended[0].out


async def test_a_wrong_policy_is_told_as_the_controller_tells_it(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("wrong: 1\n")
    ended = await site.vgpu("plan", "--policy", str(other))
    assert (ended.code, ended.out) == (ConfigError.exit_code, "")
    assert ended.err == f"error: {other}:3: unknown key 'wrong'\nhint: did you mean 'pool'?\n"


async def test_an_empty_policy_is_no_plan_for_what_the_controller_has(site: Site, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("\n")
    ended = await site.vgpu("plan", "--policy", str(tmp_path / "empty.yaml"))
    assert (ended.code, ended.out) == (ConfigError.exit_code, "")
    assert ended.err.startswith(f"error: {tmp_path}/empty.yaml: the file is empty\n")
    assert not site.controller.asked


async def test_a_pool_file_that_is_wrong_is_warned_of_and_still_tells_where_the_controller_is(site: Site) -> None:
    site.config.write_text(site.config.read_text() + "polcy: {}\n")
    ended = await site.vgpu("status")
    assert ended.code == 0
    assert ended.err.startswith(f"warning: {site.config}:10: unknown key 'polcy'")
    assert "pool hpc" in ended.out


async def test_apply_waits_until_everything_is_done(site: Site) -> None:
    site.controller.steps = 3
    ended = await site.vgpu("apply", "--wait", "30")
    assert (ended.code, ended.err) == (0, "")
    assert site.controller.asked == ["apply", "", "", ""]
    assert "1 keep" in ended.out


async def test_apply_that_does_not_end_in_time_says_so(site: Site) -> None:
    site.controller.steps = 1_000_000
    site.controller.problems.append("GPU GPU-1: change failed: it is in use")
    ended = await site.vgpu("apply", "--wait", "0.1")
    assert ended.code == 8
    assert ended.err.splitlines() == [
        "n1:0: GPU GPU-1: change failed: it is in use",
        "error: 1 GPU is not done after 0.1 s",
        "hint: the controller goes on; see `vgpu status`",
    ]


async def test_without_munge_nothing_is_asked(site: Site) -> None:
    ended = await site.vgpu("--munge-socket", "/nonexistent/socket", "status")
    assert ended.code == 6
    assert "error: " in ended.err
    assert "Traceback" not in ended.err


async def test_doctor_reports_what_it_cannot_reach(site: Site) -> None:
    """There is no Slurm here: that is a finding, beside what the controller tells."""
    ended = await site.vgpu("doctor", "--json")
    report = json.loads(ended.out)
    assert ended.code == 1
    assert report["kind"] == "doctor"
    assert [finding["code"] for finding in report["findings"]] == ["slurm-away", "no-catalogue"]


async def test_explain_takes_a_job_as_squeue_shows_it(site: Site) -> None:
    element, waiting, document, others, nonsense = await asyncio.gather(
        *(site.vgpu("explain", *argv) for argv in (["12_3"], ["12_[4-9]"], ["12", "--json"], ["99"], ["12x"]))
    )
    assert (element.code, element.err, element.out) == (0, "", waiting.out.replace("12_[4-9]", "12_3"))
    assert element.out.startswith("job 12_3 of root asks for vgpu:3g.40gb:1")
    assert "it can start when this ends: job 7 on n1:0 (no time limit)" in element.out
    assert json.loads(document.out)["blockers"] == [{"job_id": 7, "node": "n1", "gpus": [0], "ends_at": 0}]
    assert (others.code, others.out) == (3, "")
    assert others.err == "error: job 99 is another user's\nhint: root and SlurmUser may ask about every job\n"
    assert (nonsense.code, nonsense.out) == (3, "")
    assert "'12x' is no job id" in nonsense.err


async def test_an_element_of_an_array_is_shown_by_the_name_that_squeue_gives_it(site: Site) -> None:
    own, element = await asyncio.gather(*(site.vgpu("show", "job", name) for name in ("12", "12_0")))
    assert (element.code, element.err) == (0, "")
    assert element.out == own.out.replace("job 12 ", "job 12_0 ")
    assert (await site.vgpu("explain", "12_0")).out == "job 12_0 of root runs: `vgpu show job 12_0` lists its slices\n"
