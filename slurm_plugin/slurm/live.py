"""Reads from a running Slurm, and from the files it names on this host, what `checks` compares."""

import asyncio
import glob
from collections.abc import Mapping
from pathlib import Path

from slurm_plugin.slurm.checks import Live
from slurm_plugin.slurm.commands import SlurmCommands

HOOKS = ("Prolog", "Epilog", "TaskProlog")
MAX_HOOK_FILES = 200  # of one glob
MAX_FILE_BYTES = 256 * 1024


async def read_live(slurm: SlurmCommands) -> Live:
    """Raises SlurmError or SlurmUnavailable. A file that is not on this host is as if it said nothing."""
    config, partitions, nodes = await asyncio.gather(slurm.config(), slurm.partitions(), slurm.nodes())
    return await asyncio.to_thread(_with_files, config, Live(config=config, partitions=partitions, nodes=nodes))


def _with_files(config: Mapping[str, str], live: Live) -> Live:
    gres_conf = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent / "gres.conf"
    hooks = {name: text for name in HOOKS if (text := _hook_text(config.get(name, "")))}
    return Live(
        config=live.config,
        partitions=live.partitions,
        nodes=live.nodes,
        gres_conf=_read(gres_conf),
        hooks=hooks,
    )


def _hook_text(value: str) -> str:
    """The paths of all that a hook setting runs, where links lead, and the texts of what is a script."""
    texts = []
    for pattern in filter(None, value.split(",")):
        for name in sorted(glob.glob(pattern))[:MAX_HOOK_FILES]:  # noqa: PTH207 - Slurm's value is an absolute glob(7)
            path = Path(name)
            texts += [name, str(path.resolve()), _read(path)]
    return "\n".join(texts)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
