"""What a site tells its peers of its pools' room."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import federation.runner
from federation.model.messages import Room
from federation.runner import Runner
from tests.integration.federation.site import PATIENCE_S, Net, linked, until


async def test_a_peer_hears_of_no_more_room_than_its_rules_leave_it(tmp_path: Path) -> None:
    net = Net(tmp_path)
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")
    async with edge.up() as sender, hpc.up() as runner:
        house = runner.engine.target.house
        few = replace(house.guests["edge"], most_jobs=5)
        runner.engine.target.house = replace(house, guests={**house.guests, "edge": few})
        await linked(edge, hpc)
        await runner.tell_rooms()

        async def told() -> bool:
            return [room.free_jobs for room in sender.engine.sites["hpc"].rooms.values()] == [5]

        await until(told)
        assert runner.engine.sites["hpc"].rooms["batch"].free_jobs > 5


async def test_peers_hear_at_once_that_a_site_drains_and_that_it_does_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation.runner, "ROOMS_S", 10 * PATIENCE_S)
    net = Net(tmp_path)
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")

    async def told() -> list[str]:
        return [room.why if not room.free_jobs else "" for room in sender.engine.sites["hpc"].rooms.values()]

    async with edge.up() as sender:
        async with hpc.up() as runner:
            await linked(edge, hpc)
            for on, why in ((True, "its site is draining"), (False, ""), (True, "its site is draining")):
                await runner.drain(on)

                async def heard(why: str = why) -> bool:
                    return await told() == [why]

                await until(heard)
        async with hpc.up() as runner:
            await until_draining(runner)  # no restart ends it


async def until_draining(runner: Runner) -> None:
    async def draining() -> bool:
        return runner.draining

    await until(draining)


async def test_a_pool_that_does_not_tell_keeps_no_link_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hpc, asked = Net(tmp_path).site("hpc", "edge"), asyncio.Event()

    async def room() -> Room:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(hpc.backend, "room", room)
    monkeypatch.setattr(federation.runner, "ROOM_S", 10 * PATIENCE_S)
    async with hpc.up() as runner, asyncio.timeout(PATIENCE_S):
        await runner.link("edge", up=True)
        await asked.wait()
