"""The D-Bus client, over a real bus with fake services."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peer.guest.conditions import FactUnavailable
from peer.guest.sources import LOGIN, NETWORK, POWER, IdleSource, PluggedInSource, UnmeteredSource
from peer.guest.system_bus import SystemBus
from tests.support.fake_system_bus import SEATLESS, FakeSystem, fake_system

pytestmark = [
    pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs the dbus-daemon program"),
    pytest.mark.processes,
]


def play(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[FakeSystem, SystemBus], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), fake_system(folder) as system:
            monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", system.address)
            bus = SystemBus()
            try:
                await scenario(system, bus)
            finally:
                await bus.close()

    asyncio.run(main())


def test_each_source_tells_what_its_service_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(system: FakeSystem, bus: SystemBus) -> None:
        idle, plugged, unmetered = IdleSource(bus), PluggedInSource(bus), UnmeteredSource(bus)
        assert [(await one.read()).holds for one in (idle, plugged, unmetered)] == [True, True, True]
        system.facts |= {"IdleHint": False, "OnBattery": True, "Metered": 3}
        told = [await one.read() for one in (idle, plugged, unmetered)]
        assert [one.holds for one in told] == [False, False, False]
        assert [one.why for one in told] == [
            "somebody uses this machine",
            "this machine runs on its battery",
            "the network is metered",
        ]
        system.sessions = SEATLESS
        assert (await idle.read()).holds is True, "an ssh session is nobody at the machine"
        system.facts |= {"Metered": 0}
        assert (await unmetered.read()).holds is None

    play(tmp_path, monkeypatch, scenario)


def test_a_change_wakes_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(system: FakeSystem, bus: SystemBus) -> None:
        assert await bus.get(POWER, "OnBattery") is False
        began = time.monotonic()
        waiting = asyncio.create_task(bus.changed(15.0))
        await system.change("OnBattery", True)
        await waiting
        assert time.monotonic() - began < 10
        assert await bus.get(POWER, "OnBattery") is True
        await bus.changed(0.0)  # nothing changed: the time is over at once

    play(tmp_path, monkeypatch, scenario)


def test_what_a_service_lacks_is_not_told_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(system: FakeSystem, bus: SystemBus) -> None:
        del system.facts["Metered"]
        with pytest.raises(FactUnavailable, match=r"NetworkManager does not answer on the system bus: UnknownProperty"):
            await bus.get(NETWORK, "Metered")

    play(tmp_path, monkeypatch, scenario)


def test_a_machine_without_a_system_bus_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")

    async def main() -> None:
        bus = SystemBus()
        with pytest.raises(FactUnavailable, match="the system bus cannot be reached"):
            await bus.get(LOGIN, "IdleHint")
        assert (await IdleSource(bus).read()).holds is None
        await bus.close()

    asyncio.run(main())


def test_a_bus_that_restarts_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bus = SystemBus()
        for at in range(2):
            (folder := tmp_path / str(at)).mkdir()
            async with asyncio.timeout(60), fake_system(folder) as system:
                monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", system.address)
                if at == 1:
                    with pytest.raises(FactUnavailable):
                        await bus.get(POWER, "OnBattery")  # the old connection
                assert await bus.get(POWER, "OnBattery") is False
        await bus.close()

    asyncio.run(main())
