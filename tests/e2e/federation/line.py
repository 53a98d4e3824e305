"""A TCP link that a test can cut, let hang, and restore."""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Self

PORTION = 1 << 16
ENDS_S = 10.0


class Line:
    """Listens at `port` on loopback, and leads to another one. A context manager, with a thread of its own."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.cuts = 0  # connections that were open when the line was cut, or made while it was
        self._loop = asyncio.new_event_loop()
        self._cut = False
        self._flows = asyncio.Event()
        self._open: set[asyncio.WriteTransport] = set()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(ENDS_S)
        assert not self._thread.is_alive()
        self._loop.close()

    def cut(self) -> None:
        """Every connection is reset, and so is each that is tried until it is restored."""
        self._loop.call_soon_threadsafe(self._do_cut)

    def hang(self) -> None:
        """Nothing gets through, and nobody is told."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def restore(self) -> None:
        """What was under way on a line that hung arrives now, as TCP would send it again."""
        self._loop.call_soon_threadsafe(self._do_restore)

    def _do_cut(self) -> None:
        self._cut = True
        for transport in list(self._open):
            self._reset(transport)

    def _do_restore(self) -> None:
        self._cut = False
        self._flows.set()

    def _reset(self, transport: asyncio.WriteTransport) -> None:
        self.cuts += 1
        transport.abort()

    async def _serve(self) -> None:
        self._flows.set()
        server = await asyncio.start_server(self._connected, sock=self._socket)
        await self._over.wait()
        server.close()
        self._do_cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            self._reset(writer.transport)
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer.transport, back.transport)
        self._open.update(ends)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._open.difference_update(ends)
            for end in ends:
                end.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PORTION):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()
