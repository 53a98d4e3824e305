"""Running one command of the machine to its end."""

import subprocess
from collections.abc import Mapping, Sequence

from slurm_plugin.errors import LabError

COMMAND_LIMIT_S = 30.0


def run_command(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """stdout of a command. Raises LabError with the last line it said when it fails. Bounds: COMMAND_LIMIT_S."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no word why"]
        raise LabError(f"{argv[0]} failed ({done.returncode}): {said[-1][:300]}")
    return done.stdout
