"""Three sites: edge without a scheduler, hpc beside a real Slurm, cloud with a real Slurm behind a real sshd.

All links between them, and the one from cloud to its login node, are lines that can be cut.
"""

import random
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federation.cli.main import run
from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import Lab, LabSpec
from tests.contract.federation.executors.sshd import Sshd
from tests.e2e.federation.line import Line
from tests.e2e.live import name_of_this_run
from tests.integration.federation.daemons import Site, passable

USER, LOGIN = "bob", "alice"  # who submits, and as whom cloud logs in
KEPT = "MinJobAge=3600"  # every job is known to the end, unless it was forgotten

_SITE = """version: 1
site: {name}
state_dir: {folder}/state
listen: 127.0.0.1:{port}
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}.sock}}
audit: {{path: {folder}/audit.log}}
pools: {{batch: {pool}}}
peers: {{{peers}}}
"""
_EDGE = "{{local: {{folder: {root}/edge-spool, cpus: 4}}}}"
_HPC = "{{slurm: {{folder: {root}/hpc-spool, conf: {conf}}}}}"
_CLOUD = (
    "{{ssh: {{host: 127.0.0.1, port: {port}, user: {login}, known_hosts: {root}/known_hosts, key: {root}/sshd/key, "
    "users: [{user}], folder: {root}/cloud-copies, there: {root}/there/spool}}}}"
)
_GUEST = f"pools: [batch], users: {{{USER}: {USER}}}"


@dataclass(kw_only=True)
class Cluster:
    """A Slurm in a lab."""

    lab: Lab
    spool: Path

    def resume(self) -> None:
        """What an admin does, or a pool of ours: Slurm drains a node when a number that it forgot comes again."""
        for node in self.lab.nodes:
            if _TWICE in self._slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%E"):
                self._slurm("scontrol", "update", f"nodename={node}", "state=resume")

    def _slurm(self, *argv: str) -> str:
        environment = commands.environment(self.lab.name, self.lab.folder.parent)
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout


@dataclass(kw_only=True)
class Three:
    root: Path
    sites: dict[str, Site]
    clusters: dict[str, Cluster]  # of hpc and of cloud
    sshd: Sshd
    lines: dict[str, Line]  # "edge-hpc", ..., "cloud-sshd"

    @property
    def spools(self) -> list[Path]:
        return [self.root / "edge-spool", *(one.spool for one in self.clusters.values())]


@contextmanager
def three() -> Iterator[Three]:
    """All of it is up. At the end no daemon of the federation has logged a fault of ours."""
    ensure_people()
    with ExitStack() as stack:
        root = stack.enter_context(passable())
        labs = {name: stack.enter_context(_lab(name)) for name in ("hpc", "cloud")}
        (root / "hpc-spool").mkdir(mode=0o711)
        (root / "there").mkdir()
        shutil.chown(root / "there", LOGIN, LOGIN)
        spools = {"hpc": root / "hpc-spool", "cloud": root / "there/spool"}
        sshd = Sshd(root, {"SLURM_CONF": str(labs["cloud"].slurm_conf)})
        sshd.start()
        stack.callback(sshd.kill)
        ports = dict(zip(("edge", "hpc", "cloud"), _free_ports(3), strict=True))
        ends = {"edge-hpc": ports["hpc"], "edge-cloud": ports["cloud"], "hpc-cloud": ports["cloud"]}
        lines = {
            name: stack.enter_context(Line(port)) for name, port in (ends | {"cloud-sshd": sshd.login().port}).items()
        }
        key = sshd.known_hosts.read_text().split(" ", 1)[1]
        (root / "known_hosts").write_text(f"[127.0.0.1]:{lines['cloud-sshd'].port} {key}")
        sites = _write_sites(root, ports, lines, labs)
        clusters = {name: Cluster(lab=lab, spool=spools[name]) for name, lab in labs.items()}
        for site in sites.values():
            stack.callback(_end, site)
            site.start()
        yield Three(root=root, sites=sites, clusters=clusters, sshd=sshd, lines=lines)


def _write_sites(root: Path, ports: dict[str, int], lines: dict[str, Line], labs: dict[str, Lab]) -> dict[str, Site]:
    pools = {
        "edge": _EDGE.format(root=root),
        "hpc": _HPC.format(root=root, conf=labs["hpc"].slurm_conf),
        "cloud": _CLOUD.format(root=root, port=lines["cloud-sshd"].port, login=LOGIN, user=USER),
    }
    assert run(["pki", "init", "lab", "--folder", str(root / "pki")]) == 0
    sites = {}
    for name, pool in pools.items():
        folder = root / name
        assert run(["pki", "issue", name, "--folder", str(root / "pki"), "--out", str(folder)]) == 0
        peers = [f"{other}: {{{_GUEST}}}" for other in pools if f"{other}-{name}" in lines]
        peers += [
            f"{other}: {{address: '127.0.0.1:{lines[f'{name}-{other}'].port}'}}"
            for other in pools
            if f"{name}-{other}" in lines
        ]
        text = _SITE.format(name=name, folder=folder, port=ports[name], pool=pool, peers=", ".join(peers))
        (folder / "fed.yaml").write_text(text)
        sites[name] = Site(name, folder)
    return sites


def _end(site: Site) -> None:
    if site.process is not None:
        site.end()
        assert "Traceback" not in site.log(), site.log()


@contextmanager
def _lab(name: str) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="labs", dir="/run") as folder:
        base = Path(folder)
        base.chmod(0o755)
        name = name_of_this_run().replace("e2e", name)
        try:
            yield commands.up(LabSpec(name=name, pool=False, slurm_lines=(KEPT,)), base)
        finally:
            commands.down(name, base)
            base.mkdir(exist_ok=True)


def _free_ports(count: int) -> list[int]:
    """From below those that the kernel gives to outgoing connections: a daemon comes back to its own."""
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + secrets.randbelow(10_000)
        with suppress(OSError), closing(socket.create_server(("127.0.0.1", port))):
            found.append(port)
    return found


class Restarts(Protocol):
    def kill(self) -> None: ...

    def start(self) -> None: ...


def restart(daemon: Restarts, rng: random.Random) -> None:
    daemon.kill()
    time.sleep(rng.uniform(*_DOWN_S))
    daemon.start()


def disturb(line: Line, rng: random.Random) -> None:
    if rng.random() < 0.5:
        line.cut()
        time.sleep(rng.uniform(*_CUT_S))
    else:
        line.hang()
        time.sleep(rng.uniform(*_HANG_S))
    line.restore()


_CUT_S, _HANG_S, _DOWN_S = (0.2, 4.0), (0.5, 4.0), (0.0, 2.0)
_HANDED = re.compile(r"slurm\.submitted job='([0-9a-f-]{36})/\d+' slurm_job='(\d+)'")
_TWICE = "Duplicate jobid"
_BEGIN = re.compile(r"slurmctld version \S+ started on cluster")
_SUBMITTED = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ")
_STARTED_UNKNOWN = re.compile(r"error: Registered PENDING JobId=(\d+) ")  # it runs, and Slurm takes it for waiting
_STARTED = re.compile(r"(?:Allocate|Started) JobId=(\d+) ")
_RECOVERED = re.compile(r"Recovered JobId=(\d+) ")


def handed(log: str) -> set[tuple[str, str]]:
    """(token, number of its job in Slurm) of all that a daemon has given to its Slurm, by the daemon's log."""
    return set(_HANDED.findall(log))


def forgotten(log: str) -> set[str]:
    """Numbers of jobs that a slurmctld acknowledged, or started, and that a later one did not know of.

    None of these may be requeued: one that a later slurmctld starts again it took for one that waits.
    """
    found: set[str] = set()
    known: set[str] = set()
    before: set[str] = set()  # started
    for life in _BEGIN.split(log)[1:]:
        recovered = set(_RECOVERED.findall(life))
        started = set(_STARTED.findall(life))
        found |= (known - recovered) | set(_STARTED_UNKNOWN.findall(life)) | (before & started)
        before |= started
        known = recovered | set(_SUBMITTED.findall(life))
    return found
