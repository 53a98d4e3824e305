from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.live import read_live


class Printed:
    """Answers each question with what Slurm would print."""

    def __init__(self, config: str) -> None:
        self._by_last_word = {
            "config": config,
            "partition": "PartitionName=gpu State=UP\n",
            "node": "",
            "--wrap=true": "sbatch: vgpu: ...",
        }

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        return self._by_last_word[argv[-1]]


async def test_hooks_are_read_through_globs_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "prolog.d"
    folder.mkdir()
    program = tmp_path / "vgpu-prolog"
    program.write_bytes(b"\x7fELF\xff\0vgpu-prolog\0")
    (folder / "90-vgpu").symlink_to(program)  # its name tells it nothing: it does nothing
    script = tmp_path / "tp"
    script.write_text("#!/bin/sh\n/usr/libexec/vgpu/vgpu-taskprolog || exit 1\n")
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\n")
    config = (
        f"Prolog = {folder}/*\nEpilog = {tmp_path}/on-the-node-only\nTaskProlog[0] = {script}\n"
        f"SLURM_CONF = {tmp_path}/slurm.conf\n"
    )
    live = await read_live(SlurmCommands(runner=Printed(config)))
    assert set(live.hooks) == {"Prolog", "TaskProlog"}
    assert "vgpu-prolog" not in live.hooks["Prolog"]
    (folder / "90-vgpu-prolog").symlink_to(program)
    assert "90-vgpu-prolog" in (await read_live(SlurmCommands(runner=Printed(config)))).hooks["Prolog"]
    assert "vgpu-taskprolog || exit 1" in live.hooks["TaskProlog"]
    assert live.gres_conf == "AutoDetect=nvml\n"
    assert live.partitions["gpu"] == {"State": "UP"}


async def test_a_host_without_the_files_has_empty_texts(tmp_path: Path) -> None:
    live = await read_live(SlurmCommands(runner=Printed(f"SLURM_CONF = {tmp_path}/slurm.conf\n")))
    assert (live.hooks, live.gres_conf, live.nodes) == ({}, "", ())
