"""What the controller writes beside its decisions, and whether it can: each agent's inventory, and the catalogue.

What could not be written is tried again, pass after pass, until it is: what is told of it is never old.
"""

from collections.abc import Awaitable

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.roster import Member


class Records:
    def __init__(self, desk: Desk, keep: Keep) -> None:
        self._desk = desk
        self._keep = keep
        self._unsaved: set[str] = set()  # nodes whose inventory is not on disk as it is now

    async def remember(self, member: Member) -> None:
        """On disk is the last one with all of its node's GPUs: it tells whose they are when some are missing."""
        if not member.is_whole:
            self._unsaved.discard(member.name)
        elif member.inventory is not None:
            write = self._keep.inventory(member.name, member.inventory)
            wrote = await self.written("state", self._desk.config.controller.state_dir, write)
            (self._unsaved.discard if wrote else self._unsaved.add)(member.name)

    async def again(self) -> None:
        """Try one of those that could not be written, and the others once it could."""
        problems, roster = self._desk.problems, self._desk.roster
        self._unsaved &= roster.keys()
        for name in sorted(self._unsaved):
            await self.remember(roster[name])
            if name in self._unsaved:
                return
        problems.pop("state", None)

    async def written(self, what: str, where: object, write: Awaitable[None]) -> bool:
        try:
            await write
        except OSError as error:
            self._desk.problems[what] = f"can't write {where}: {error.strerror}"
            return False
        self._desk.problems.pop(what, None)
        return True
