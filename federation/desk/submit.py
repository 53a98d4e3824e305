"""A local user submits: what he said becomes a spec, his inputs are copied as they are now, and the job is accepted.

Crash: the job is in the journal, with all its inputs durable, or it is not there at all.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import FileIO
from typing import Any
from uuid import UUID

from federation.access.environment import scrub
from federation.access.local import Caller
from federation.access.paths import parts_of
from federation.desk.possible import check_possible
from federation.desk.talk import PORTION, raw
from federation.errors import Refused
from federation.executors.layout import check
from federation.model.job import Job
from federation.model.spec import Input, JobSpec, Lease, OnSilence
from federation.policy.admit import MAX_INPUTS, MAX_SCRIPT_BYTES
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.runner import Runner
from federation.stage.chunks import CHUNK_BYTES, MAX_CHUNKS, hash_of
from federation.stage.spool import Home, Spool, no_room
from federation.store.room import leave_room
from federation.wire.convert import MAX_TEXT
from federation.wire.crossing import check_crosses
from slurm_plugin import request

MOST_AHEAD_S = 86_400.0  # how far a token's time may be from ours
MOST_OUTPUTS = 1000  # patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    runner: Runner
    spool: Spool
    environment: tuple[str, ...]  # variables that go without being asked for
    targets: frozenset[str]  # peers that jobs of ours go to
    accounts: Mapping[str, frozenset[str]] | None = None  # account -> its users; None: anybody may name any


async def submit(
    front: Front, caller: Caller, told: Mapping[str, Any], reader: asyncio.StreamReader
) -> tuple[Job, str]:
    """The job, and the names of variables that stay here. Told again with the same token, the same job.

    Raises Refused, StoreFull, Unavailable, IncompleteReadError; ValueError, KeyError, TypeError for no question.
    """
    token = _token(told["token"])
    known = await front.runner.read(lambda store: store.job(token))
    if known is not None:
        if known.user != caller.user:
            raise Refused("this token is taken")
        return known, ""
    spec, dropped = _spec(front, caller, told, await reader.readexactly(_script_size(told)))
    _check_account(front, caller, spec)
    _check(caller, spec)
    _check_pin(front, spec.pin)
    await check_possible(front.runner, front.targets, spec)
    home = Home(user=caller.user, folder=str(told["folder"]))
    if not home.folder.startswith("/"):
        raise Refused("the folder that files are brought back to must be absolute")
    try:
        manifest = await _take_inputs(front.spool, token, home, told["inputs"], reader)
        await asyncio.to_thread(front.spool.finish, token, manifest)
        inputs = tuple(Input(path=one.path, size=one.size, sha256=one.sha256) for one in manifest.files)
        spec = replace(spec, inputs=inputs)
        check_crosses(spec)
        job = await front.runner.accept(token, spec)
    except BaseException:
        if await front.runner.read(lambda store: store.job(token)) is None:
            front.spool.drop(token)
        raise
    return job, b" ".join(dropped).decode("utf-8", "backslashreplace")


def _token(told: object) -> UUID:
    token = UUID(str(told))
    if token.version not in (7, 8) or abs((token.int >> 80) / 1000 - time.time()) > MOST_AHEAD_S:
        raise Refused("the token is not one of now", hint="is this fed of the daemon's version?")
    return token


def _script_size(told: Mapping[str, Any]) -> int:
    size = int(told["script_size"])
    if not 0 <= size <= MAX_SCRIPT_BYTES:
        raise Refused(f"a script has at most {MAX_SCRIPT_BYTES >> 20} MiB", hint="--stage-in brings files")
    return size


def _spec(front: Front, caller: Caller, told: Mapping[str, Any], script: bytes) -> tuple[JobSpec, tuple[bytes, ...]]:
    env = [(raw(name), raw(value)) for name, value in told["env"]]
    scrubbed = scrub(env, front.environment, asked=[raw(name) for name in told["asked"]])
    deadline = told.get("deadline_at")
    spec = JobSpec(
        user=caller.user,
        account=str(told.get("account", "")),
        name=raw(told["name"]),
        script=script,
        args=tuple(raw(one) for one in told["args"]),
        env=scrubbed.env,
        gres=str(told.get("gres", "")),
        cpus=int(told.get("cpus", 1)),
        memory_mib=int(told.get("memory_mib", 0)),
        time_limit_s=int(told.get("time_limit_s", 0)),
        pin=str(told.get("pin", "")),
        deadline_at=None if deadline is None else float(deadline),
        outputs=tuple(raw(one) for one in told["outputs"]),
        lease=Lease(on_silence=OnSilence(told.get("on_silence", "keep")), after_s=float(told.get("lease_s", 0.0))),
    )
    asked = {raw(name) for name in told["asked"]}
    return spec, tuple(name for name in scrubbed.dropped if name in asked)


def _check(caller: Caller, spec: JobSpec) -> None:
    if not caller.user:
        raise Refused("you are nobody on this host: a job needs a user")
    for what, told in (("user", spec.user), ("account", spec.account), ("gres", spec.gres), ("site", spec.pin)):
        if not told.isprintable() or len(told) > MAX_TEXT:
            raise Refused(f"this {what} is no name: it is too long, or has what can't be printed")
    if not 1 <= spec.cpus < 1 << 31 or not 0 <= spec.memory_mib < 1 << 40 or not 0 <= spec.time_limit_s < 1 << 31:
        raise Refused("CPUs, memory and time must be numbers that a job can have")
    check(spec)
    asked = request.parse(spec.gres) if spec.gres else None
    if isinstance(asked, request.Refusal):
        raise Refused(asked.text)
    if len(spec.outputs) > MOST_OUTPUTS:
        raise Refused(f"more than {MOST_OUTPUTS} patterns of files to bring back")
    for pattern in spec.outputs:
        parts_of(pattern)
    if spec.outputs and os.geteuid() not in (0, caller.uid):
        raise Refused(f"the daemon is not root's: it can't write files as {caller.user}")
    check_crosses(spec)


def _check_account(front: Front, caller: Caller, spec: JobSpec) -> None:
    if front.accounts is None or caller.admin or spec.user in front.accounts.get(spec.account, ()):
        return
    theirs = sorted(name or "none" for name, users in front.accounts.items() if spec.user in users)
    named = f"{spec.user} may not use account {spec.account}" if spec.account else "a job needs an account"
    raise Refused(named, hint=f"--account, one of: {', '.join(theirs) or 'you have none here'}")


def _check_pin(front: Front, pin: str) -> None:
    """A site that was not heard since we started may have any pool."""
    site, _, pool = pin.partition("/")
    sites = front.runner.engine.sites
    if site and site not in sites:
        raise Refused(f"there is no site {site}", hint="fed peers lists them")
    if site and site not in (front.runner.engine.name, *front.targets):
        raise Refused(
            f"no job goes to {site}: it sends jobs here", hint=f"peers.{site}.address in fed.yaml, to send some"
        )
    if pool and sites[site].rooms and pool not in sites[site].rooms:
        raise Refused(f"site {site} has no pool {pool} for this one", hint=f"it has {', '.join(sites[site].rooms)}")


async def _take_inputs(
    spool: Spool, token: UUID, home: Home, told: list[Any], reader: asyncio.StreamReader
) -> pb.Manifest:
    if len(told) > MAX_INPUTS:
        raise Refused(f"more than {MAX_INPUTS} files of input", hint="pack them into one")
    paths = [raw(path) for path, _, _ in told]
    if len(set(paths)) != len(paths):
        raise Refused("two inputs have the same name there")
    for path in paths:
        parts_of(path)
    if sum(int(size) for _, size, _ in told) > MAX_CHUNKS * CHUNK_BYTES // 2:
        raise Refused(f"more than {MAX_CHUNKS * CHUNK_BYTES >> 31} GiB of input")
    await asyncio.to_thread(spool.begin, token, home)
    files = []
    for nth, (path, size, mode) in enumerate(told):
        files.append(
            await _take_one(spool, token, nth, pb.File(path=raw(path), size=int(size), mode=int(mode)), reader)
        )
    return pb.Manifest(files=files)


async def _take_one(spool: Spool, token: UUID, nth: int, file: pb.File, reader: asyncio.StreamReader) -> pb.File:
    whole, left = hashlib.sha256(), file.size
    try:
        with await asyncio.to_thread(open, spool.input_file(token, nth), "wb", 0) as out:
            while left:
                data = await reader.readexactly(min(CHUNK_BYTES, PORTION, left))
                whole.update(data)
                file.chunks.append(hash_of(data))
                await asyncio.to_thread(_write, out, data)
                left -= len(data)
    except OSError as error:
        raise no_room(error) from None
    file.sha256 = whole.digest()
    return file


def _write(out: FileIO, data: bytes) -> None:
    leave_room(out.fileno(), len(data))
    out.write(data)
