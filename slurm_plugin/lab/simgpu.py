"""Control of a simulated node: make it, break it, reboot it, look at it.

A node is a folder: `nvml.state` (what the library in slurm_plugin/lab/nvml answers from), and beside it the proc/ and
dev/ that a driver would show. Everything here takes the path of that file, may run at any time beside NVML clients, and
takes effect at once: no client is told, each call reads the file.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab.nvml import layout, tree
from slurm_plugin.lab.nvml.boards import SimGpu, board
from slurm_plugin.lab.nvml.statefile import locked

LIBRARY_FOLDER = Path(__file__).parent / "nvml" / "build"  # for LD_LIBRARY_PATH
LIBRARY = LIBRARY_FOLDER / "libnvidia-ml.so.1"
_CALL = re.compile(rb"\0(nvml[A-Z]\w+)(?<!_t)(?<!_st)(?=\0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCompute:
    """A compute instance that exists."""

    id: int
    profile: str
    start: int  # compute slices of its GPU instance
    size: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimInstance:
    """A GPU instance that exists."""

    gpu: int
    gi: int
    profile: str
    start: int  # memory slices
    size: int
    stuck: bool
    compute: tuple[SimCompute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimProcess:
    pid: int
    gpu: int
    gi: int  # -1: on a GPU without MIG
    ci: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole of a node at one moment."""

    gpus: tuple[str, ...]  # UUIDs, by index
    mig: tuple[tuple[bool, bool], ...]  # (current, pending) mode of each GPU
    lost: tuple[bool, ...]
    instances: tuple[SimInstance, ...]  # by GPU, then GPU-instance id
    processes: tuple[SimProcess, ...]
    boots: int
    calls: Mapping[str, int]  # how often each NVML function was called by root, since the node was made

    def slices(self) -> dict[str, SimInstance]:
        """The instance of each MIG device, by its UUID."""
        return {compute.uuid: instance for instance in self.instances for compute in instance.compute}


def create(
    path: Path,
    *,
    product: str | Sequence[SimGpu] = "h100-80gb",
    count: int = 1,
    variant: str = "identity",
    seed: str | int | None = None,
    driver: str = "580.173.02",
    cuda: int = 13000,
    stale_sessions: bool = False,
    profiles_when_disabled: bool = True,
) -> None:
    """Make a node: `count` GPUs of one product, or one GPU for each SimGpu given.

    `seed` decides the UUIDs; without one they hang on the path. Folders are made, an existing node is replaced.
    Raises ConfigError for an unknown product, LabError for what the library has no room for.
    """
    gpus = [SimGpu(product=product, variant=variant)] * count if isinstance(product, str) else list(product)
    if not 1 <= len(gpus) <= layout.GPUS:
        raise LabError(f"a simulated node has 1 to {layout.GPUS} GPUs, not {len(gpus)}")
    file = layout.File()
    file.magic, file.layout, file.gpus = layout.MAGIC, layout.LAYOUT, len(gpus)
    file.flags = layout.STALE_SESSIONS * stale_sessions + layout.NO_PROFILES_WHEN_DISABLED * (
        not profiles_when_disabled
    )
    file.driver_version, file.cuda_version = driver.encode(), cuda
    state = file.state[0]
    state.next_serial = state.boots = 1
    for index, gpu in enumerate(gpus):
        file.board[index] = board(gpu, index=index, seed=str(path if seed is None else seed))
        state.gpu[index].mig = state.gpu[index].mig_pending = gpu.mig and file.board[index].max_mig_devices > 0
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in ("proc", "dev"):
        shutil.rmtree(path.parent / folder, ignore_errors=True)
    tree.make(path.parent, [file.board[index].minor for index in range(len(gpus))])
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(bytes(file))
    beside.chmod(0o644)
    beside.replace(path)


def inject(
    path: Path, *, call: str, code: int = 0, times: int = 1, gpu: int = -1, delay_ms: int = 0, crash: str = ""
) -> None:
    """Make the next `times` calls of one NVML function fail with `code`, be slow, or kill their process.

    `call` is the C name that clients call (`nvmlDeviceCreateGpuInstanceWithPlacement`), `nvmlInit`, or `activation`
    (what a MIG mode change answers beside success). `gpu` -1 means any. `crash`: "before" anything is done, "inside"
    the change with nothing in force yet, or "after" it is in force but before its files are made.
    Bounds: 32 faults at a time.
    """
    library = LIBRARY.read_bytes() if LIBRARY.is_file() else b""
    if f"\0{call}\0".encode() not in library:
        calls = {name.decode().lower(): name.decode() for name in _CALL.findall(library)}
        near = [calls[one] for one in get_close_matches(call.lower(), calls, n=2)]
        hint = f"did you mean {' or '.join(near)}?" if near else "NVML's C names, such as nvmlDeviceGetCount_v2"
        raise LabError(f"the simulated library has no call '{call}'", hint=hint)
    with locked(path) as node:
        free = next((nth for nth, fault in enumerate(node.file.fault) if fault.times == 0), None)
        if free is None:
            raise LabError(f"{layout.FAULTS} faults are injected already", hint="clear them first")
        fault = node.file.fault[free]
        fault.code, fault.gpu, fault.delay_ms = code, gpu, delay_ms
        fault.crash, fault.call, fault.times = layout.CRASH_POINTS.index(crash), call.encode(), times
        node.write("fault", node.file.fault)


def clear(path: Path) -> None:
    """Take back every fault: injected ones, stuck instances, lost GPUs."""
    with locked(path) as node:
        node.write("fault", (layout.Fault * layout.FAULTS)())
        state = node.draft()
        for gpu in state.gpu:
            gpu.lost = 0
            for gi in gpu.gi:
                gi.stuck = 0
        node.commit(state)


def stick(path: Path, slice_uuid: str) -> None:
    """Let this slice's instance refuse to go (IN_USE), with no process to be seen: what a monitoring daemon does."""
    with locked(path) as node:
        gpu, gi, _ = node.find(slice_uuid)
        state = node.draft()
        state.gpu[gpu].gi[gi].stuck = 1
        node.commit(state)


def lose(path: Path, gpu: int) -> None:
    """Let a GPU fall off the bus: every call about it answers GPU_IS_LOST, until clear() or reboot()."""
    with locked(path) as node:
        state = node.draft()
        state.gpu[gpu].lost = 1
        node.commit(state)


def add_process(path: Path, uuid: str, pid: int, *, memory_mib: int = 256) -> None:
    """Let a process compute on a MIG device or GPU: shown, and keeping the instance busy, for as long as it lives."""
    with locked(path) as node:
        gpu, gi, ci = node.find(uuid)
        state = node.draft()
        entry = next((p for p in state.process if p.pid == 0 or not Path(f"/proc/{p.pid}").exists()), None)
        if entry is None:
            raise LabError(f"a simulated node holds at most {layout.PROCESSES} processes")
        entry.pid, entry.gpu, entry.gi, entry.ci, entry.memory_mib = pid, gpu, gi, ci, memory_mib
        node.commit(state)


def remove_process(path: Path, pid: int) -> None:
    """Let this process be done, on every device."""
    with locked(path) as node:
        state = node.draft()
        for entry in state.process:
            if entry.pid == pid:
                entry.pid = 0
        node.commit(state)


def reboot(path: Path) -> None:
    """All instances and processes are gone, device nodes too; the MIG mode stays or goes as the architecture has it."""
    _restart(path, None)


def reset(path: Path, gpu: int) -> None:
    """Reset one GPU: its instances are gone and a pending MIG mode is in force."""
    _restart(path, gpu)


def modprobe(path: Path) -> None:
    """Put every device node back to root's and mode 0444, as the driver's setuid nvidia-modprobe does for any user.

    A capability whose entry says `DeviceFileModify: 0` is left alone.
    """
    for entry in (path.parent / tree.CAPABILITIES).glob("gpu*/mig/**/access"):
        facts = dict(line.split(": ") for line in entry.read_text().splitlines() if ": " in line)
        if facts.get("DeviceFileModify") != "0" and "DeviceFileMinor" in facts:
            node = path.parent / "dev/nvidia-caps" / f"nvidia-cap{facts['DeviceFileMinor']}"
            node.touch()
            os.chown(node, 0, 0)
            node.chmod(0o444)


def snapshot(path: Path) -> Snapshot:
    with locked(path) as node:
        file, state = node.file, node.now
        gpus = range(file.gpus)
        return Snapshot(
            gpus=tuple(file.board[gpu].uuid.decode() for gpu in gpus),
            mig=tuple((bool(state.gpu[gpu].mig), bool(state.gpu[gpu].mig_pending)) for gpu in gpus),
            lost=tuple(bool(state.gpu[gpu].lost) for gpu in gpus),
            instances=tuple(i for gpu in gpus for i in instances_of(gpu, file.board[gpu], state.gpu[gpu])),
            processes=tuple(
                SimProcess(pid=p.pid, gpu=p.gpu, gi=p.gi, ci=p.ci, memory_mib=p.memory_mib)
                for p in state.process
                if p.pid
            ),
            boots=state.boots,
            calls={counter.call.decode(): counter.calls for counter in file.counter if counter.calls},
        )


def instances_of(index: int, board: layout.Board, gpu: layout.Gpu) -> Iterator[SimInstance]:
    for number, gi in enumerate(gpu.gi):
        if gi.serial == 0:
            continue
        profile = board.profile[gi.profile]
        yield SimInstance(
            gpu=index,
            gi=number,
            profile=profile.name.decode(),
            start=gi.start,
            size=gi.size,
            stuck=bool(gi.stuck),
            compute=tuple(
                SimCompute(
                    id=nth,
                    profile=profile.ci[ci.profile].name.decode(),
                    start=ci.start,
                    size=ci.size,
                    uuid=board.mig_uuid[number][nth].value.decode(),
                )
                for nth, ci in enumerate(gi.ci)
                if ci.serial
            ),
        )


def _restart(path: Path, only: int | None) -> None:
    with locked(path) as node:
        state = node.draft()
        gone = range(node.file.gpus) if only is None else (only,)
        for index in gone:
            gpu, board = state.gpu[index], node.file.board[index]
            mode = gpu.mig_pending if only is not None or board.mode_persists else 0
            state.gpu[index] = layout.Gpu(mig=mode, mig_pending=mode, persistence=gpu.persistence)
        for entry in state.process:
            if entry.gpu in gone:
                entry.pid = 0
        state.boots += only is None
        node.commit(state)
        for index in gone:
            shutil.rmtree(path.parent / tree.CAPABILITIES / f"gpu{node.file.board[index].minor}", ignore_errors=True)
        if only is None:
            shutil.rmtree(path.parent / "dev", ignore_errors=True)
        tree.make(path.parent, [node.file.board[index].minor for index in range(node.file.gpus)])
