"""The Lua files that are ready to install."""

import pytest

from slurm_plugin.errors import ConfigError
from slurm_plugin.hooks.lua import FILES, scripts


def test_the_ready_files_carry_the_sites_path() -> None:
    made = scripts(catalogue="/srv/pool/catalogue")
    assert tuple(made) == FILES
    assert all('"/srv/pool/catalogue"' in text and "/var/lib/vgpu/catalogue" not in text for text in made.values())


@pytest.mark.parametrize("path", ["catalogue", '/a"b', "/a\nb", "/a\\b"])
def test_a_path_that_would_break_the_lua_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        scripts(catalogue=path)


def test_the_ready_file_carries_the_partition_of_virtual_nodes() -> None:
    assert 'local CLOUD = "cloud" --' in scripts(cloud="cloud")["job_submit.lua"]
    assert 'local CLOUD = "" --' in scripts()["job_submit.lua"]
