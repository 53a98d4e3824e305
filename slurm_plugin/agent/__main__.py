"""python -m slurm_plugin.agent --config FILE"""

import argparse
import asyncio
import sys
from pathlib import Path

from slurm_plugin import children, logs, trust
from slurm_plugin.agent.config import load_config
from slurm_plugin.agent.daemon import serve
from slurm_plugin.errors import VgpuError


def main() -> int:
    parser = argparse.ArgumentParser(prog="vgpu-agent", description="The pool's agent: root's daemon on a GPU node.")
    parser.add_argument("--config", type=Path, default=Path("/etc/vgpu/agent.yaml"), metavar="FILE")
    try:
        path = parser.parse_args().config
        trust.check(path)
        config = load_config(path)
        for ours in (config.state_dir, config.socket.parent):
            trust.check(ours)
        logs.to_stderr(config.log_level)
        children.heard_by_pidfd()
        asyncio.run(serve(config))
    except VgpuError as error:
        print(f"error: {error}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
