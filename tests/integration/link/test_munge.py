"""A munge that can't be had is told as one thing, whatever kept us from it."""

import asyncio
import errno
import os

import pytest

from slurm_plugin.errors import LinkError, Untrusted
from slurm_plugin.link import munge
from slurm_plugin.link.munge import Munge


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EAGAIN, errno.EMFILE, errno.ENOMEM])
async def test_program_that_can_not_be_started(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async def no_child(*_argv: str, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_child)
    one = Munge()
    for _ in range(munge.AT_ONCE + 1):  # a failed start gives its turn back
        with pytest.raises(LinkError) as failed:
            await one.encode("x", for_uid=0)
        assert not isinstance(failed.value, Untrusted)


async def test_wait_for_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def stuck(_argv: tuple[str, ...], _stdin: bytes) -> bytes:
        await never.wait()
        return b""

    monkeypatch.setattr(munge, "_run", stuck)
    monkeypatch.setattr(munge, "ANSWER_S", 0.05)
    one = Munge()
    calls = [asyncio.create_task(one.encode("x", for_uid=0)) for _ in range(munge.AT_ONCE + 1)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(LinkError, match="other munge programs"):
        await done.pop()
    never.set()
    await asyncio.gather(*calls, return_exceptions=True)
