"""Credentials of the cluster's munged, made and checked by its own `munge` and `unmunge` programs."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.errors import LinkError, Untrusted

TTL_S = 60  # how long a credential lives; both ends are within one handshake of each other
ANSWER_S = 10.0  # longest wait for munged
PAYLOAD_BYTES = 1024  # longest payload we make or take
CREDENTIAL_BYTES = 8192  # longest credential we take
AT_ONCE = 8  # munge programs at once; strangers can make us start them
_SOCKET, _TIMEOUT = 6, 7  # exit codes: munged did not answer
_PROGRAM = re.compile(r"^(un)?munge: (Error: )?")
_TIMES = ("Expired credential", "Rewound credential")
_ANOTHERS = "Unauthorized credential"
_FOR_ANOTHER = "is the controller's user another than `user` of pool.yaml, or --controller-uid, says?"
_KEY_OR_CLOCK = "both hosts need the same munge key and nearly the same clock"
_UID = re.compile(rb"^UID:[^\n]*\((\d+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A payload and the user who made its credential, as munged vouches for it."""

    uid: int
    payload: str


def tells_of_the_clock(error: Untrusted) -> bool:
    """Was it refused for its time alone? Then it is of this cluster."""
    return any(text in str(error) for text in _TIMES)


class Munge:
    """One munged, by its socket (None: munge's default one)."""

    def __init__(self, socket: Path | None = None, *, ttl_s: int = TTL_S) -> None:
        self._socket = ("--socket", str(socket)) if socket else ()
        self._ttl_s = ttl_s
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def encode(self, payload: str, *, for_uid: int) -> bytes:
        """A credential that only `for_uid` can decode. Raises LinkError when munged does not answer."""
        argv = ("munge", *self._socket, f"--ttl={self._ttl_s}", f"--restrict-uid={for_uid}")
        return (await self._run(argv, payload.encode())).strip()

    async def decode(self, credential: bytes) -> Signed:
        """Check a credential; munged itself refuses an expired, replayed, forged or foreign one.

        Raises Untrusted for those, LinkError when munged does not answer.
        """
        if len(credential) > CREDENTIAL_BYTES:
            raise Untrusted("munge credential is too long")
        argv = ("unmunge", *self._socket, "--keys=STATUS,UID")
        out = await self._run(argv, credential)
        head, blank, payload = out.partition(b"\n\n")
        uid = _UID.search(head)
        if not blank or uid is None or len(payload) > PAYLOAD_BYTES:
            raise Untrusted("munge credential holds no payload of ours")
        return Signed(uid=int(uid[1]), payload=payload.decode("ascii", "replace"))

    async def _run(self, argv: tuple[str, ...], stdin: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._slots.acquire()
        except TimeoutError:
            raise LinkError(f"{AT_ONCE} other munge programs took all of {ANSWER_S:g} s") from None
        try:
            return await _run(argv, stdin)
        finally:
            self._slots.release()


async def _run(argv: tuple[str, ...], stdin: bytes) -> bytes:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise LinkError(f"{argv[0]} is not installed", hint="install the munge package on this host") from None
    except OSError as error:
        raise LinkError(f"{argv[0]} could not be started: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(ANSWER_S):
            out, err = await process.communicate(stdin)
    except (TimeoutError, asyncio.CancelledError) as gone:
        process.kill()
        await process.wait()
        if isinstance(gone, asyncio.CancelledError):
            raise
        raise LinkError(f"munged did not answer within {ANSWER_S:g} s", hint="is munged running?") from None
    if process.returncode in (_SOCKET, _TIMEOUT):
        raise LinkError(_said(out, err), hint="is munged running, and is its socket the configured one?")
    if process.returncode != 0:
        said = _said(out, err)
        raise Untrusted(said, hint=_FOR_ANOTHER if _ANOTHERS in said else _KEY_OR_CLOCK)
    return out


def _said(out: bytes, err: bytes) -> str:
    """What went wrong in one line: unmunge tells it as STATUS on stdout, munge on stderr."""
    text = (out if out.startswith(b"STATUS:") else err).decode("utf-8", "replace").strip()
    line = text.split("\n")[0].removeprefix("STATUS:").strip()
    return "munge: " + _PROGRAM.sub("", line)[:200]
