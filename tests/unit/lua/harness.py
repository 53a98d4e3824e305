"""vgpu.lua in a Lua of its own, with a `slurm` that keeps what it is told, and records that are plain tables."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lupa.lua51
import lupa.lua54

from slurm_plugin.job_request import Job, JobRewrite
from slurm_plugin.request import Refusal

VERSIONS = {"lua5.1": lupa.lua51.LuaRuntime, "lua5.4": lupa.lua54.LuaRuntime}
SOURCE = Path(__file__).parents[3] / "slurm_plugin" / "hooks" / "lua" / "vgpu.lua"

# As slurmctld has it on 22.05: no ESLURM_INVALID_GRES, and log_user formats.
_SLURM = """
told, logged = {}, {}
slurm = {
   SUCCESS = 0,
   log_user = function(...) told[#told + 1] = string.format(...) end,
   log_error = function(...) logged[#logged + 1] = string.format(...) end,
}
"""


class Lua:
    """Text goes in as UTF-8 and comes out so; what is no UTF-8 is kept by surrogates, as Python's file names do."""

    def __init__(self, version: str) -> None:
        self.runtime = VERSIONS[version](encoding=None)
        self.runtime.execute(_SLURM.encode())
        self.module = self.runtime.execute(f'return dofile("{SOURCE}")'.encode())

    def table(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            made = self.runtime.table()
            for key, one in value.items():
                made[self.table(key)] = self.table(one)
            return made
        if isinstance(value, tuple | list):
            return self.table(dict(enumerate(value, 1)))
        return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value

    def plain(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if hasattr(value, "items") and not isinstance(value, dict):
            return {self.plain(key): self.plain(one) for key, one in value.items()}
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def catalogue(self, text: str) -> Any:
        """The parsed catalogue, or None."""
        found = self.module[b"parse_catalogue"](text.encode("utf-8", "surrogateescape"))
        return None if isinstance(found, tuple) else found

    def decide(self, job: Job, catalogue: Any) -> JobRewrite | Refusal | None:
        fields = {key: value for key, value in asdict(job).items() if value is not None}
        found = self.plain(self.module[b"decide"](self.table(fields), catalogue))
        if found is None:
            return None
        if "refusal" in found:
            return Refusal(text=found["refusal"])
        found.pop("term")
        notes = tuple(found.pop("notes").values())
        return JobRewrite(gres_class=found.pop("class"), partition=found.pop("partition", None), notes=notes, **found)

    def expand(self, text: str) -> list[str] | None:
        found = self.plain(self.module[b"expand"](text.encode()))
        return None if found is None else list(found.values())

    def told(self) -> list[str]:
        return list(self.plain(self.runtime.globals()[b"told"]).values())

    def call(self, name: str, *records: Any) -> int:
        return int(self.module[name.encode()](*records))
