"""`vgpu lab`: a Slurm site with simulated GPUs on this machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slurm_plugin.cli.options import DryRun, Json
from slurm_plugin.cli.output import emit, emit_document, say
from slurm_plugin.cli.view import DaemonView, LabEnvironment, LabList, LabPlace, LabStatusView, LabView

DEFAULT_BASE = Path("/run/vgpu-lab")

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="A Slurm site with simulated GPUs on this machine. It uses loopback and one folder only.",
)


Name = Annotated[str, typer.Option("--name", envvar="VGPU_LAB", metavar="NAME", help="Which lab.")]
Base = Annotated[
    Path, typer.Option("--dir", envvar="VGPU_LAB_DIR", metavar="FOLDER", help="The folder that holds the labs.")
]
Daemon = Annotated[
    str, typer.Argument(metavar="DAEMON[:NODE]", help="As `vgpu lab status` lists them: slurmctld, agent:n1, ...")
]
Node = Annotated[str, typer.Argument(metavar="NODE", help="n1, n2, ...")]


@app.command("up")
def up(
    name: Name = "hpc",
    nodes: Annotated[
        int, typer.Option(envvar="VGPU_LAB_NODES", metavar="N", min=1, max=64, help="How many GPU nodes.")
    ] = 2,
    gpus: Annotated[int, typer.Option(envvar="VGPU_LAB_GPUS", metavar="N", min=1, max=16, help="GPUs a node.")] = 4,
    product: Annotated[
        list[str] | None,
        typer.Option(
            envvar="VGPU_LAB_PRODUCT",
            metavar="MODEL",
            help="GPU model; given more than once, they go round the nodes. [default: h100-80gb]",
        ),
    ] = None,
    accounting: Annotated[
        bool, typer.Option("--accounting", envvar="VGPU_LAB_ACCOUNTING", help="Also slurmdbd on a MariaDB of its own.")
    ] = False,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            envvar="VGPU_LAB_GATEWAY",
            metavar="NODE",
            help="A virtual node, such as cloud-1, for a fed daemon beside the lab; may be given more than once.",
        ),
    ] = None,
    base: Base = DEFAULT_BASE,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Start a lab and wait until it takes jobs."""
    from slurm_plugin.lab import commands
    from slurm_plugin.lab.site import LabSpec
    from slurm_plugin.mig.products import product_named

    spec = LabSpec(
        name=name,
        nodes=nodes,
        gpus=gpus,
        products=tuple(product or ("h100-80gb",)),
        accounting=accounting,
        clouds=tuple(gateway or ()),
    )
    for one in spec.products:
        product_named(one)  # raises before there is anything to remove
    if not dry_run:
        commands.up(spec, base, say)
    lab = LabView(
        name=name,
        folder=str(base.absolute() / name),
        nodes=nodes,
        gpus=gpus,
        products=spec.products,
        changed=not dry_run,
    )
    if json:
        emit_document("lab", lab)
        return
    verb = "is" if lab.changed else "would be"
    emit([f"lab {name} {verb} up in {lab.folder}: {nodes} nodes with {gpus} GPUs ({', '.join(lab.products)})"])
    if lab.changed:
        say(f'hint: eval "$(vgpu lab env --name {name})"')


@app.command("down")
def down(name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """End every process of a lab and remove its folder. It may be in any state."""
    from slurm_plugin.lab import commands

    if dry_run:
        emit([f"would end every process of the lab in {base.absolute() / name} and remove that folder"])
        return
    if not commands.down(name, base):
        say(f"hint: there is no lab {name} in {base}; `vgpu lab list` names those that there are")


@app.command("env")
def env(
    name: Name = "hpc",
    node: Annotated[
        str,
        typer.Option(
            "--node", envvar="VGPU_LAB_NODE", metavar="NODE", help="Also see this node's simulated GPUs through NVML."
        ),
    ] = "",
    base: Base = DEFAULT_BASE,
    json: Json = False,
) -> None:
    """Shell lines for: eval "$(vgpu lab env)"."""
    from slurm_plugin.lab import commands

    variables = commands.environment(name, base, node)
    if json:
        emit_document("lab-env", LabEnvironment(variables=variables))
    else:
        emit(commands.environment_text(variables).splitlines())


@app.command("as", context_settings={"allow_interspersed_args": False})
def act_as(
    person: Annotated[str, typer.Argument(metavar="USER", help="alice, bob, carol, or whom this machine has.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Without one, a shell.")] = None,
    name: Name = "hpc",
    base: Base = DEFAULT_BASE,
) -> None:
    """Run a command as one of its users, in a folder of that user's."""
    from slurm_plugin.lab.acting import acting

    found = acting(name, person, tuple(command or ()), base)
    os.chdir(found.home)
    os.execvpe(found.argv[0], found.argv, found.env)  # noqa: S606 - it is what was asked for


@app.command("status")
def status(name: Name = "hpc", base: Base = DEFAULT_BASE, json: Json = False) -> None:
    """Every daemon of a lab."""
    from slurm_plugin.cli.screen import table
    from slurm_plugin.lab import commands

    found = commands.status(name, base)
    lab = LabStatusView(
        name=found.name,
        folder=str(found.folder),
        supervisor=found.supervisor,
        lacks=found.lacks,
        daemons=tuple(
            DaemonView(daemon=d.daemon, wanted=d.wanted, pid=d.pid, restarts=d.restarts, last_exit=d.last_exit)
            for d in found.daemons
        ),
    )
    if json:
        emit_document("lab-status", lab)
        return
    emit([f"lab {lab.name} in {lab.folder}: {'ready' if not lab.lacks else 'not ready: ' + lab.lacks}"])
    rows = ((d.daemon, _state(d), str(d.pid or "-"), str(d.restarts)) for d in lab.daemons)
    emit(table(("DAEMON", "STATE", "PID", "RESTARTS"), rows))


def _state(daemon: DaemonView) -> str:
    return "up" if daemon.pid else ("starting" if daemon.wanted else "stopped")


@app.command("list")
def list_labs(base: Base = DEFAULT_BASE, json: Json = False) -> None:
    """The labs on this machine."""
    from slurm_plugin.cli.screen import table
    from slurm_plugin.lab import commands

    labs = tuple(LabPlace(name=lab.name, folder=str(lab.folder)) for lab in commands.list_labs(base))
    if json:
        emit_document("labs", LabList(labs=labs))
    else:
        emit(table(("LAB", "FOLDER"), ((lab.name, lab.folder) for lab in labs)))


@app.command("kill")
def kill(daemon: Daemon, name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """SIGKILL a daemon; the supervisor starts it again."""
    from slurm_plugin.lab import commands

    _break(f"kill {daemon}", name, base, lambda: commands.kill(name, daemon, base), dry_run=dry_run)


@app.command("stop")
def stop(daemon: Daemon, name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """End a daemon; it stays down until `start`."""
    from slurm_plugin.lab import commands

    _break(f"stop {daemon}", name, base, lambda: commands.stop(name, daemon, base), dry_run=dry_run)


@app.command("start")
def start(daemon: Daemon, name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """Start a stopped daemon."""
    from slurm_plugin.lab import commands

    _break(f"start {daemon}", name, base, lambda: commands.start(name, daemon, base), dry_run=dry_run)


@app.command("reboot")
def reboot(node: Node, name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """Cut a node's power and switch it on again. Its jobs die, and no GPU instance is left."""
    from slurm_plugin.lab import commands

    _break(f"reboot {node}", name, base, lambda: commands.reboot(name, node, base), dry_run=dry_run)


@app.command("fault")
def fault(
    node: Node,
    call: Annotated[
        str, typer.Argument(metavar="CALL", help="NVML's C name, such as nvmlDeviceCreateGpuInstanceWithPlacement.")
    ],
    code: Annotated[
        int,
        typer.Option(
            envvar="VGPU_LAB_FAULT_CODE",
            metavar="CODE",
            min=0,
            max=999,
            help="The NVML error to answer; 0: none, only slow.",
        ),
    ] = 0,
    times: Annotated[
        int, typer.Option(envvar="VGPU_LAB_FAULT_TIMES", metavar="N", min=1, max=1_000_000, help="How many calls.")
    ] = 1,
    gpu: Annotated[
        int, typer.Option(envvar="VGPU_LAB_FAULT_GPU", metavar="INDEX", min=-1, help="On which GPU; -1: any.")
    ] = -1,
    delay_ms: Annotated[
        int,
        typer.Option(envvar="VGPU_LAB_FAULT_DELAY_MS", metavar="MS", min=0, max=600_000, help="How slow each call is."),
    ] = 0,
    name: Name = "hpc",
    base: Base = DEFAULT_BASE,
    dry_run: DryRun = False,
) -> None:
    """Let calls of an NVML function fail or be slow. It is about the next ones on a node."""
    from slurm_plugin.lab import commands

    wanted = commands.Fault(call=call, code=code, times=times, gpu=gpu, delay_ms=delay_ms)
    _break(f"break {call} on {node}", name, base, lambda: commands.fault(name, node, wanted, base), dry_run=dry_run)


@app.command("stick")
def stick(
    node: Node,
    slice_uuid: Annotated[str, typer.Argument(metavar="MIG-UUID")],
    name: Name = "hpc",
    base: Base = DEFAULT_BASE,
    dry_run: DryRun = False,
) -> None:
    """Let a slice refuse to be destroyed. Nothing is to be seen that holds it."""
    from slurm_plugin.lab import commands

    what = f"make {slice_uuid} on {node} stuck"
    _break(what, name, base, lambda: commands.stick(name, node, slice_uuid, base), dry_run=dry_run)


@app.command("lose")
def lose(
    node: Node,
    gpu: Annotated[int, typer.Argument(metavar="INDEX", min=0)],
    name: Name = "hpc",
    base: Base = DEFAULT_BASE,
    dry_run: DryRun = False,
) -> None:
    """Let a GPU fall off the bus."""
    from slurm_plugin.lab import commands

    _break(f"lose GPU {gpu} of {node}", name, base, lambda: commands.lose(name, node, gpu, base), dry_run=dry_run)


@app.command("heal")
def heal(node: Node, name: Name = "hpc", base: Base = DEFAULT_BASE, dry_run: DryRun = False) -> None:
    """Take back every fault of a node's GPUs."""
    from slurm_plugin.lab import commands

    _break(f"heal {node}", name, base, lambda: commands.clear_faults(name, node, base), dry_run=dry_run)


def _break(what: str, name: str, base: Path, act: Callable[[], None], *, dry_run: bool) -> None:
    """Do it, or only say it once the lab is known to be there."""
    from slurm_plugin.lab import commands

    if dry_run:
        commands.load(name, base)
        emit([f"would {what} in lab {name}"])
    else:
        act()
