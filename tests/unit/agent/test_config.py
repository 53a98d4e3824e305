from pathlib import Path

import pytest

from slurm_plugin.agent.config import AgentConfig, load_config, parse_config
from slurm_plugin.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "configs/agent.yaml"


def test_the_example_says_what_the_defaults_are() -> None:
    config = load_config(EXAMPLE)
    assert config == AgentConfig(node=config.node, controller="ctl.example.org:6820")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (None, "expected settings"),
        ([], "expected settings"),
        ({"controler": "a:1"}, "no setting 'controler'"),
        ({}, "controller: expected host:port"),
        ({"controller": "ctl"}, "controller: expected host:port"),
        ({"controller": "ctl:x"}, "controller: expected host:port"),
        ({"controller": 6820}, "controller: expected text"),
        ({"controller": "ctl:1", "socket": "agent.sock"}, "socket: expected an absolute path"),
        ({"controller": "ctl:1", "slurm_bin": 3}, "slurm_bin: expected an absolute path"),
        ({"controller": "ctl:1", "wait_s": -1}, "wait_s: expected seconds"),
        ({"controller": "ctl:1", "wait_s": True}, "wait_s: expected seconds"),
        ({"controller": "ctl:1", "wait_s": 61}, "wait_s: expected seconds, 0 to 60"),
        ({"controller": "ctl:1", "controller_uid": "root"}, "controller_uid: expected a whole number"),
        ({"controller": "ctl:1", "node": "n1\nx"}, "node: expected text"),
        ({"controller": "ctl:1", "cgroup": "../up"}, "cgroup: expected the name of a folder"),
        ({"controller": "ctl:1", "log_level": "LOUD"}, "log_level: expected one of"),
    ],
)
def test_a_wrong_setting_is_named(settings: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(settings)


def test_a_file_that_is_not_there_or_not_yaml_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "agent.yaml")
    (tmp_path / "agent.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "agent.yaml")


def test_an_address_of_the_sixth_version_is_an_address() -> None:
    assert parse_config({"controller": "[::1]:6820", "wait_s": 5}).wait_s == 5.0
