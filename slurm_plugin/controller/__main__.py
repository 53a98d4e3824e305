"""python -m slurm_plugin.controller --config FILE"""

import argparse
import asyncio
import sys
from pathlib import Path

from slurm_plugin import children, logs
from slurm_plugin.controller.daemon import run
from slurm_plugin.errors import VgpuError


def main() -> int:
    parser = argparse.ArgumentParser(prog="vgpu-controller", description="The pool's controller, beside slurmctld.")
    parser.add_argument("--config", type=Path, default=Path("/etc/vgpu/pool.yaml"), metavar="FILE")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    arguments = parser.parse_args()
    logs.to_stderr(arguments.log_level)
    children.heard_by_pidfd()
    try:
        asyncio.run(run(arguments.config))
    except VgpuError as error:
        print(f"error: {error}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
