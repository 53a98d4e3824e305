"""What lies in a site's folders of jobs and attempts that are over or forgotten goes, once an hour."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from federation.errors import Unavailable
from federation.model.states import Origin
from federation.stage.holdings import Journal
from federation.stage.spool import Spool
from federation.store.store import Store
from federation.tasks import heed

log = logging.getLogger(__name__)

TIDY_S = 3600.0  # between looks
TIDY_PAGE = 100  # jobs asked about at once

Written = Callable[[Store, Sequence[UUID]], set[UUID]]
"""Those of these jobs, all Slurm's, that are over there, with what they wrote in their own files."""


async def tidied(*tidies: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. What fails is tried again the next time, and keeps no other from its turn."""
    while True:
        for tidy in tidies:
            try:
                await tidy()
            except Unavailable as error:  # the journal has too much to do now
                heed()
                log.info("daemon.not_tidied", extra={"why": str(error)})
            except Exception:
                heed()
                log.exception("daemon.not_tidied")
        await asyncio.sleep(TIDY_S)


async def tidy_jobs(journal: Journal, spool: Spool, written: Written) -> None:
    """Drop what is kept of jobs that the journal does not know; younger ones may be submitted just now."""
    tokens = await asyncio.to_thread(lambda: list(spool.tokens()))
    for start in range(0, len(tokens), TIDY_PAGE):
        await _tidy_page(journal, spool, written, tokens[start : start + TIDY_PAGE])


async def _tidy_page(journal: Journal, spool: Spool, written: Written, page: Sequence[UUID]) -> None:
    told = await journal.read(lambda store: written(store, page))
    jobs = await journal.read(lambda store: {token: store.job(token) for token in page})
    for token, job in jobs.items():
        done = job is not None and job.state is Origin.DONE
        if done and token in told:
            await asyncio.to_thread(spool.drop, token)
        elif done:
            await asyncio.to_thread(spool.drop_inputs, token)
        elif job is None and (token.int >> 80) / 1000 < time.time() - TIDY_S:
            await asyncio.to_thread(spool.drop, token)
