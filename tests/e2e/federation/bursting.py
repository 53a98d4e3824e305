"""A Slurm whose jobs can run in a pool of another: two labs, a daemon beside each, and a user's jobs on the first.

`hpc` has a virtual node, served by a slurmd with the plugins as they are installed; `cloud` is the pool's site.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from federation.lab.sites import NODE, Terms, write_sites
from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import Lab, LabSpec
from tests.e2e.bare_slurm import free_ports
from tests.e2e.federation.line import Line
from tests.e2e.federation.sites import KEPT, _end
from tests.e2e.live import Live, name_of_this_run
from tests.integration.federation.daemons import Site, passable

USER = "bob"
REQUEUE_S = 10  # how long a requeued job waits, which is two minutes on a real cluster


@dataclass(kw_only=True)
class Bursting:
    """Both are up, and the partition is open."""

    here: Live  # the Slurm whose jobs burst
    there: Live
    hpc: Site
    cloud: Site
    line: Line  # between the daemons

    def kill(self, daemon: str) -> None:
        """One of the first lab's; its supervisor starts it again."""
        commands.kill(self.here.lab.name, daemon, self.here.base)

    def wait_open(self) -> None:
        self.here.until(
            lambda: "up" in self.here.slurm("sinfo", "-h", "-p", "cloud", "-o", "%a"), "an open partition", 60
        )

    def wait_state(self, job: str, *states: str, limit_s: float = 60.0) -> None:
        self.here.until(lambda: self.here.state(job) in states, f"job {job} {' or '.join(states)}", limit_s)

    def field(self, job: str, name: str) -> str:
        """Of scontrol's record: for jobs of the test's own only."""
        shown = self.here.slurm("scontrol", "show", "job", "-o", job).split()
        return next((text.partition("=")[2] for text in shown if text.startswith(f"{name}=")), "")


@contextmanager
def bursting(
    *,
    pool: bool = False,
    accounting: bool = False,
    rules: str = "{}",
    lines: tuple[str, ...] = (),
    lines_there: tuple[str, ...] = (),
    nodes: int = 2,
) -> Iterator[Bursting]:
    """`pool`: both have one GPU node with agent and job_submit. `accounting`: of the Slurm whose jobs burst.

    `nodes`: of the pool's Slurm, where it has no GPUs. `lines`, `lines_there`: of either slurm.conf.

    At the end no daemon has logged a fault of ours.
    """
    ensure_people()
    with ExitStack() as stack:
        root = stack.enter_context(passable())
        plain = LabSpec(pool=pool, requeue_delay_s=REQUEUE_S, slurm_lines=(KEPT,))
        spec = replace(plain, nodes=1, gpus=1) if pool else plain
        bursts = replace(spec, clouds=(NODE,), slurm_lines=(KEPT, *lines), accounting=accounting)
        here = stack.enter_context(_lab("hpc", root, bursts))
        offers = replace(spec if pool else replace(spec, nodes=nodes), slurm_lines=(KEPT, *lines_there))
        there = stack.enter_context(_lab("cloud", root, offers))
        port = free_ports(1)[0]
        line = stack.enter_context(Line(port))
        write_sites(root, here, there, Terms(user=USER, listen=port, reached=line.port, rules=rules))
        sites = {name: Site(name, root / name) for name in ("cloud", "hpc")}
        for site in sites.values():
            stack.callback(_end, site)
            site.start()
        made = Bursting(here=Live(here), there=Live(there), hpc=sites["hpc"], cloud=sites["cloud"], line=line)
        made.wait_open()
        yield made
        made.here.slurm("scancel", "--user", USER)


@contextmanager
def _lab(name: str, root: Path, spec: LabSpec) -> Iterator[Lab]:
    base = root / f"labs-{name}"
    named = replace(spec, name=name_of_this_run().replace("e2e", name))
    try:
        yield commands.up(named, base)
    finally:
        commands.down(named.name, base)
