"""Slurm's commands at a login node with ways of its own answer as they do here."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from federation.executors.ssh_host import SshHost
from slurm_plugin.errors import SlurmError
from slurm_plugin.lab.people import ensure_people
from tests.contract.federation.executors.sshd import Sshd, host_behind_ssh

ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "de_DE.UTF-8", "SLURM_TIME_FORMAT": "relative"}


@pytest.fixture
async def host(folder: Path) -> AsyncIterator[SshHost]:
    ensure_people()
    sshd = Sshd(folder, ELSEWHERE)
    sshd.start()
    made = host_behind_ssh(sshd, folder)
    yield made
    await made.close()
    sshd.kill()


async def test_its_zone_its_language_and_its_formats_are_not_heard_of(host: SshHost) -> None:
    said = await host.run(["sh", "-c", "echo $TZ $LC_ALL $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN; date +%z"])
    assert said == "UTC C %s 0\n+0000\n"


async def test_what_a_command_says_no_with_is_told(host: SshHost) -> None:
    with pytest.raises(SlurmError, match="not today"):
        await host.run(["sh", "-c", "echo not today >&2; exit 1"])
