"""What an executor asks of a login node besides Slurm: small texts for sh(1), files, and where the folders are.

No decision about a job is made here.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

import paramiko

from federation.errors import OutcomeUnknown, Unavailable
from federation.executors import ssh_scripts
from federation.executors.ssh_link import ANSWER_S, Said, SshLink

T = TypeVar("T")


class Shell:
    """Every call raises Unavailable: nobody asks this way for what must not be done twice."""

    def __init__(self, link: SshLink, root: str) -> None:
        self.link = link
        self._wanted, self._found = root, ""
        self._lock = asyncio.Lock()

    async def root(self) -> str:
        """Of all folders there; made when it is first asked for."""
        async with self._lock:
            if not self._found:
                said = await self.sh(ssh_scripts.root(self._wanted))
                self._found = os.fsdecode(said.out).rstrip("\n")
            return self._found

    async def sh(self, script: str, *, timeout_s: float = ANSWER_S) -> Said:
        try:
            said = await self.link.run(script, timeout_s=timeout_s)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from None
        if said.status != 0:
            why = said.err.decode(errors="replace").strip()[:300]
            raise Unavailable(f"the login node could not do it: {why or f'exit code {said.status}'}")
        return said

    async def files(self, use: Callable[[paramiko.SFTPClient], T]) -> T:
        try:
            return await self.link.files(use)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from None
