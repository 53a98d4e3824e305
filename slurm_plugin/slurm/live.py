"""Reads from a running Slurm, and from the files it names on this host, what `checks` compares."""

import asyncio
import glob
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.facts import File, Live

# All that runs beside jobs; the pool's own are among the first three.
HOOKS = (
    *("Prolog", "Epilog", "TaskProlog"),
    *("TaskEpilog", "PrologSlurmctld", "EpilogSlurmctld", "HealthCheckProgram"),
)
CLIENT_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))  # the second is of configless hosts
HOOK_CONF = Path("/etc/vgpu/hook.conf")
NO_CLASS = "no-such-class"  # what is asked for to see who answers
MAX_HOOK_FILES = 200  # of one glob
MAX_FILE_BYTES = 256 * 1024
MAX_DEPTH = 5  # of includes in includes

_INCLUDE = re.compile(r"^[ \t]*include[ \t]+(\S+).*$", re.IGNORECASE | re.MULTILINE)


async def read_live(slurm: SlurmCommands, conf: Path | None = None, gres: str = "vgpu") -> Live:
    """Raises SlurmError or SlurmUnavailable. A file that is not on this host is as if it said nothing.

    `conf` is the slurm.conf of this host's clients, when it is not at its usual place. Slurm is also asked for a slice
    of a class that does not exist, as a test that starts nothing.
    """
    config, partitions, nodes, answer = await asyncio.gather(
        slurm.config(), slurm.partitions(), slurm.nodes(), slurm.answer_to(f"{gres}:{NO_CLASS}:1")
    )
    live = Live(config=config, partitions=partitions, nodes=nodes, answer=answer)
    return await asyncio.to_thread(_with_files, live, CLIENT_CONFS if conf is None else (conf,))


def _with_files(live: Live, client_confs: Iterable[Path]) -> Live:
    etc = Path(live.config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent
    client = next(filter(None, map(_file, client_confs)), None)
    gres_conf = _file(etc / "gres.conf")
    return replace(
        live,
        gres_conf=gres_conf.text if gres_conf else "",
        hooks={name: text for name in HOOKS if (text := _hook_text(live.config.get(name, "")))},
        client_conf=replace(client, text=_whole(client)) if client else None,
        cli_filter=_file(Path(client.folder) / "cli_filter.lua") if client else None,
        job_submit=_file(etc / "job_submit.lua"),
        module=_file(etc / "vgpu.lua"),
        own_module=resources.files("slurm_plugin.hooks").joinpath("lua/vgpu.lua").read_text(),
        hook_confs=tuple(_hook_confs(live.config)),
    )


def _hook_files(value: str) -> list[Path]:
    names = [
        name
        for pattern in filter(None, value.split(","))
        for name in sorted(glob.glob(pattern))[:MAX_HOOK_FILES]  # noqa: PTH207 - Slurm's value is an absolute glob(7)
    ]
    return [Path(name) for name in names]


def _hook_text(value: str) -> str:
    """The paths of all that a hook setting runs, and the texts of what is a script.

    Not where links lead: our program goes by the name that it is called by, so a link of another name runs nothing.
    """
    texts = []
    for path in _hook_files(value):
        file = _file(path)
        texts += [str(path), file.text if file and "\0" not in file.text else ""]
    return "\n".join(texts)


def _hook_confs(config: Mapping[str, str]) -> Iterable[File]:
    """Beside each program, links followed, as the hooks themselves look for it."""
    programs = (path.resolve() for name in HOOKS[:3] for path in _hook_files(config.get(name, "")))
    places = {HOOK_CONF} | {program.with_name(HOOK_CONF.name) for program in programs}
    return filter(None, map(_file, sorted(places)))


def _whole(conf: File, depth: int = MAX_DEPTH) -> str:
    """The text of a slurm.conf, with those it includes in their places."""

    def included(line: re.Match[str]) -> str:
        file = _file(Path(conf.folder) / line[1]) if depth else None
        return _whole(file, depth - 1) if file else ""

    return _INCLUDE.sub(included, conf.text)


def _file(path: Path) -> File | None:
    try:
        with path.open("rb") as file:
            text, facts = file.read(MAX_FILE_BYTES).decode(errors="replace"), path.stat()
    except OSError:
        return None
    return File(
        path=str(path),
        text=text,
        uid=facts.st_uid,
        mode=stat.S_IMODE(facts.st_mode),
        written_at=facts.st_mtime,
        changed_at=facts.st_ctime,
    )
