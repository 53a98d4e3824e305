"""What stands still and says nothing: a call to the driver that doesn't return, slices that no look tells anything of.

To Slurm such a node is as good as any. Each job it is sent would wait in its prolog and go back into the queue, for as
long as this lasts; so the controller is told, and sends none.
"""

import logging
import time
from collections.abc import Callable

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.threads import Threads

log = logging.getLogger(__name__)

CALL_S = 60.0  # a call to the driver that takes longer is taken for one that never returns; to open it takes seconds
LOOK_S = 60.0  # so long a freed slice may be unseen before it is told that nobody gets it
DRIVER = f"a call to the GPU driver has not returned for {CALL_S:g} s"
UNSEEN = f"nobody knows whom: no look at it has succeeded for {LOOK_S:g} s"


class Stalls:
    """`moved` is called when `fault` or `withheld` differ."""

    def __init__(
        self, book: Book, threads: Threads, *, moved: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fault = ""  # why nothing can be bound; empty: it can
        self.withheld: dict[str, str] = {}  # slices that may not be idle for long, and why
        self._book = book
        self._threads = threads
        self._moved = moved
        self._clock = clock
        self._unseen: dict[str, float] = {}  # by slice, since when

    async def look(self) -> None:
        now, since = self._clock(), self._threads.driver_since
        fault = DRIVER if since is not None and now - since >= CALL_S else ""
        self._unseen = {slice_: self._unseen.get(slice_, now) for slice_ in self._book.unseen}
        withheld = {slice_: UNSEEN for slice_, at in self._unseen.items() if now - at >= LOOK_S}
        if (fault, withheld) == (self.fault, self.withheld):
            return
        if fault != self.fault:
            log.log(logging.ERROR if fault else logging.INFO, "driver.hangs" if fault else "driver.returned")
        for slice_ in withheld.keys() - self.withheld.keys():
            log.warning("slice.unseen_for_long", extra={"slice": slice_})
        self.fault, self.withheld = fault, withheld
        self._moved()
