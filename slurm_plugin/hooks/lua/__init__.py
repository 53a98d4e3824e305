"""What slurmctld and the login nodes load: the Lua module, and ready job_submit.lua and cli_filter.lua around it.

Here: Lua, and the one function that hands it out with a site's paths. Not here: policy, which is in the catalogue.
vgpu.lua is joined by scripts/lua of the parts in src.
"""

from pathlib import Path

from slurm_plugin.catalogue import DEFAULT_PATH
from slurm_plugin.errors import ConfigError

FILES = ("vgpu.lua", "job_submit.lua", "cli_filter.lua")


def scripts(*, catalogue: str = DEFAULT_PATH, cloud: str = "") -> dict[str, str]:
    """File name -> text of each Lua file, all for the folder of slurm.conf. `catalogue` is what the controller writes,
    `cloud` the partition of virtual nodes.

    Raises ConfigError for a path that could not stand in a Lua string.
    """
    if not catalogue.startswith("/") or any(char in '"\\' or not char.isprintable() for char in catalogue):
        raise ConfigError(f"'{catalogue[:80]}' is no path for a catalogue")
    folder = Path(__file__).parent
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    texts["job_submit.lua"] = texts["job_submit.lua"].replace('CLOUD = ""', f'CLOUD = "{cloud}"')
    return {name: text.replace(f'"{DEFAULT_PATH}"', f'"{catalogue}"') for name, text in texts.items()}
