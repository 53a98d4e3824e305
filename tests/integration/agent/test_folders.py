"""An agent that can't use one of its folders says which, why and what to do, and does not start."""

from pathlib import Path

import pytest

from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.errors import ConfigError
from tests.unit.agent.world import FakeGpus, FakeSlurm, gpu, nobody


@pytest.mark.parametrize("setting", ["state_dir", "socket"])
async def test_a_folder_that_can_not_be_used_is_named_with_its_setting(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").write_text("")
    bad = tmp_path / "file" / "folder"
    config = AgentConfig(
        node="n1",
        controller="nowhere:1",
        state_dir=bad if setting == "state_dir" else tmp_path / "state",
        socket=(bad if setting == "socket" else tmp_path) / "agent.sock",
    )
    agent = Agent(config, Adapters(slurm=FakeSlurm(), gpus=FakeGpus(gpu("A")), dial=nobody))
    with pytest.raises(ConfigError) as refused:
        async with agent.running():
            pass
    assert str(refused.value).startswith(f"{setting}: the agent can't use {bad}")
    assert str(refused.value).endswith(": Not a directory")
    assert setting in refused.value.hint
