"""PURE: what a lab is: its name, nodes and ports, and where each of its files lies."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_plugin.errors import LabError

MAX_NODES = 64
MAX_GPUS = 16
MAX_CLOUDS = 16
MAX_SOCKET_PATH = 107  # bytes of sockaddr_un.sun_path without its end mark
CPUS_PER_NODE = 64
MEMORY_MIB_PER_NODE = 512_000
FILE_NAME = "lab.json"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
_CLOUD = re.compile(r"cloud-([a-z0-9-]{0,12}-)?[0-9]{1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """What somebody asks for. `products` go round the nodes.

    Without `pool` it is a plain Slurm, with no daemon of ours. `slurm_lines` are added to slurm.conf as they are.
    `requeue_delay_s`: how long a requeued job waits before it may start. Slurm ties it to the life of a credential.
    `clouds`: virtual nodes, whose jobs a federation daemon beside the lab has run elsewhere.
    """

    name: str = "hpc"
    nodes: int = 2
    gpus: int = 4
    products: tuple[str, ...] = ("h100-80gb",)
    accounting: bool = False
    pool: bool = True
    requeue_delay_s: int = 120
    slurm_lines: tuple[str, ...] = ()
    clouds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """TCP ports on 127.0.0.1; `slurmd` has one a node, virtual ones last."""

    slurmctld: int
    slurmdbd: int
    controller: int
    slurmd: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    spec: LabSpec
    folder: Path
    hostname: str
    ports: Ports
    slurm_version: tuple[int, int]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.spec.nodes + 1))

    @property
    def served(self) -> tuple[str, ...]:
        """All that have a slurmd."""
        return (*self.nodes, *self.spec.clouds)

    def product_of(self, node: str) -> str:
        return self.spec.products[self.nodes.index(node) % len(self.spec.products)]

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def bin(self) -> Path:
        """What jobs find in their PATH."""
        return self.folder / "bin"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def homes(self) -> Path:
        """What people have there, each in a folder of his own."""
        return self.folder / "home"

    @property
    def jobs(self) -> Path:
        """For the jobs that a federation daemon beside the lab hands to its Slurm."""
        return self.folder / "jobs"

    @property
    def database(self) -> Path:
        return self.folder / "db"

    @property
    def file(self) -> Path:
        return self.folder / FILE_NAME

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    def node_slurm_conf(self, node: str) -> Path:
        """A node's own: all slurmds of a lab share a machine, and hook paths are all that differs between them."""
        return self.etc / node / "slurm.conf"

    def spool(self, node: str) -> Path:
        return self.state / "slurmd" / node

    @property
    def pool_config(self) -> Path:
        return self.etc / "pool.yaml"

    def agent_config(self, node: str) -> Path:
        return self.etc / node / "agent.yaml"

    @property
    def catalogue(self) -> Path:
        return self.etc / "catalogue"

    @property
    def job_ids(self) -> Path:
        return self.etc / "job_ids.conf"

    @property
    def munge_key(self) -> Path:
        return self.etc / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def control_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def gateway_socket(self) -> Path:
        """Where a daemon beside the lab is expected to serve the virtual nodes' jobs."""
        return self.run / "gateway.sock"

    @property
    def database_socket(self) -> Path:
        return self.database / "db.sock"

    def agent_socket(self, node: str) -> Path:
        return self.run / f"agent-{node}.sock"

    def node_folder(self, node: str) -> Path:
        """Root of the node's simulated hardware: NVML state, /proc and /dev trees."""
        return self.folder / "nodes" / node

    def sim_state(self, node: str) -> Path:
        return self.node_folder(node) / "nvml.state"

    def hooks(self, node: str) -> Path:
        return self.folder / "hooks" / node

    @property
    def spank(self) -> Path:
        """The plugins and the proxy."""
        return self.folder / "spank"


def check_name(name: str) -> None:
    """Raises LabError for a name that no lab has: it is a folder's, too."""
    if not _NAME.fullmatch(name):
        raise LabError(f"'{name[:40]}' is no name for a lab", hint="up to 20 of a-z, 0-9 and -, starting with a letter")


def check_spec(spec: LabSpec, folder: Path) -> None:
    """Raises LabError when this lab cannot exist: a bad name or size, or a folder whose socket paths get too long."""
    check_name(spec.name)
    for what, count, most in (("nodes", spec.nodes, MAX_NODES), ("gpus", spec.gpus, MAX_GPUS)):
        if not 1 <= count <= most:
            raise LabError(f"a lab can have 1 to {most} {what}, not {count}")
    if len(set(spec.clouds)) > MAX_CLOUDS or not all(map(_CLOUD.fullmatch, spec.clouds)):
        hint = f"up to {MAX_CLOUDS} names such as cloud-1: a-z, 0-9 and -, then - and a number"
        raise LabError(f"a lab can't have the virtual nodes {', '.join(spec.clouds)[:80]}", hint=hint)
    if not spec.products:
        raise LabError("a lab needs a GPU product", hint="--product h100-80gb")
    # The longest socket is slurmstepd's own: <spool>/<node>/<node>_<job>.<step>, each number of ten digits.
    name = max((f"n{MAX_NODES}", *spec.clouds), key=len)
    longest = folder / "state" / "slurmd" / name / f"{name}_4294967295.4294967295"
    if len(str(longest)) > MAX_SOCKET_PATH or re.search(r"\s", str(folder)) or "#" in str(folder):
        raise LabError(
            f"the folder {folder} can't hold a lab: its path is too long for sockets, or has blanks or # in it",
            hint="use a short one, such as --dir /run/vgpu-lab",
        )


def to_text(lab: Lab) -> str:
    return json.dumps(asdict(lab) | {"folder": str(lab.folder)}, indent=1) + "\n"


def from_text(text: str) -> Lab:
    """Raises LabError when this is not a lab's file."""
    try:
        data = json.loads(text)
        spec, ports = data["spec"], data["ports"]
        return Lab(
            spec=LabSpec(**spec | {key: tuple(spec[key]) for key in ("products", "slurm_lines", "clouds")}),
            folder=Path(data["folder"]),
            hostname=data["hostname"],
            ports=Ports(**ports | {"slurmd": tuple(ports["slurmd"])}),
            slurm_version=(int(data["slurm_version"][0]), int(data["slurm_version"][1])),
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise LabError(f"the lab's {FILE_NAME} is broken: {error}", hint="take it down with: vgpu lab down") from error
