"""/etc/vgpu/agent.yaml: few settings, read by hand so that an agent stays small in memory."""

import re
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from slurm_plugin.errors import ConfigError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
MOST_S = 60  # of the 100 s that the prolog's program gives to it all


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    node: str  # Slurm's NodeName of this node
    controller: str  # host:port
    controller_uid: int = 0  # the user the controller runs as: root or SlurmUser
    socket: Path = Path("/run/vgpu/agent.sock")
    state_dir: Path = Path("/var/lib/vgpu-agent")
    proc_root: Path = Path("/proc")  # where driver/nvidia/capabilities is
    dev_root: Path = Path("/dev")  # where nvidia-caps is
    slurm_bin: Path | None = None  # folder of squeue, scontrol, scancel; None: on PATH
    slurm_conf: Path | None = None  # for their SLURM_CONF; None: Slurm's own default
    munge_socket: Path | None = None  # None: munge's own default
    cgroup: str = "vgpu"  # our folder below the cgroup that slurmstepds run in, where Slurm has no cgroup2 of its own
    gres: str = "vgpu"
    pad: str = "pad"
    wait_s: float = 30.0  # longest wait of a prolog for a slice
    log_level: str = "INFO"


def load_config(path: Path) -> AgentConfig:
    """Raises ConfigError, with the setting and what it should be."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="give the agent's settings with --config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    return parse_config(settings, where=str(path))


def parse_config(settings: Any, *, where: str = "agent.yaml") -> AgentConfig:
    """Raises ConfigError."""
    if not isinstance(settings, dict):
        raise ConfigError(f"{where}: expected settings as 'name: value' lines")
    kinds = {one.name: one.type for one in fields(AgentConfig)}
    if unknown := sorted(str(name) for name in settings if name not in kinds):
        raise ConfigError(f"{where}: no setting '{unknown[0]}'", hint=f"settings: {', '.join(kinds)}")
    values: dict[str, Any] = {"node": socket.gethostname().partition(".")[0]}
    values |= {name: _value(kinds[name], value, f"{where}: {name}") for name, value in settings.items()}
    host, _, port = str(values.get("controller", "")).rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{where}: controller: expected host:port")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", values.get("cgroup", "vgpu")):
        raise ConfigError(f"{where}: cgroup: expected the name of a folder")
    if values.get("log_level", "INFO") not in _LEVELS:
        raise ConfigError(f"{where}: log_level: expected one of {', '.join(_LEVELS)}")
    return AgentConfig(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    kind = Path if kind == Path | None else kind
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_S:
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if kind is Path and isinstance(value, str) and value.startswith("/"):
        return Path(value)
    if kind is str and isinstance(value, str) and value.isprintable():
        return value
    expected = {float: f"seconds, 0 to {MOST_S}", int: "a whole number", Path: "an absolute path", str: "text"}[kind]
    raise ConfigError(f"{where}: expected {expected}, not {value!r}")
