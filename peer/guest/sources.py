"""The sources of the conditions of `--when`: services of the system bus, and psutil for the battery."""

from __future__ import annotations

import asyncio
import time

import psutil

from peer.guest.conditions import (
    IDLE,
    PLUGGED_IN,
    UNMETERED,
    ConditionReading,
    ConditionSource,
    FactUnavailable,
    ServicePlace,
    SystemServices,
)

LOGIN = ServicePlace("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
POWER = ServicePlace("org.freedesktop.UPower", "/org/freedesktop/UPower", "org.freedesktop.UPower")
NETWORK = ServicePlace(
    "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager"
)
METERED, FREE = {1, 3}, {2, 4}
"""Values of NetworkManager's `Metered` property: metered (certain or guessed), and not metered (certain or guessed)."""
SEAT = 3
"""Index of the seat in a session that logind lists."""


class IdleSource:
    """Reads from logind whether the machine is idle: no session with a seat, or all sessions idle."""

    def __init__(self, services: SystemServices) -> None:
        self._services = services

    async def read(self) -> ConditionReading:
        try:
            sessions = await self._services.call(LOGIN, "ListSessions")
            if not any(session[SEAT] for session in sessions):
                return ConditionReading(True, "nobody sits at this machine: no session of logind has a seat")
            if not await self._services.get(LOGIN, "IdleHint"):
                return ConditionReading(False, "somebody uses this machine")
            since = await self._services.get(LOGIN, "IdleSinceHint") / 1e6
        except FactUnavailable as reason:
            return ConditionReading(None, f"whether somebody uses this machine is not known: {reason}")
        told = time.strftime("since %H:%M", time.localtime(since)) if 0 < since <= time.time() else ""
        return ConditionReading(True, "nobody uses this machine", told)


class PluggedInSource:
    """Reads whether the machine runs on mains power, from UPower, or from psutil where there is none."""

    def __init__(self, services: SystemServices) -> None:
        self._services = services

    async def read(self) -> ConditionReading:
        try:
            battery = bool(await self._services.get(POWER, "OnBattery"))
        except FactUnavailable:
            return await asyncio.to_thread(_by_psutil)
        return _powered(plugged=not battery)


def _by_psutil() -> ConditionReading:
    sensor = getattr(psutil, "sensors_battery", None)  # missing on some systems
    try:
        battery = None if sensor is None else sensor()
    except (OSError, ValueError) as error:
        return ConditionReading(None, f"whether this machine runs on its battery is not known: {error}")
    if battery is None:
        return ConditionReading(True, "this machine has no battery")
    if battery.power_plugged is None:
        return ConditionReading(None, "whether this machine runs on its battery is not known")
    return _powered(plugged=battery.power_plugged)


def _powered(*, plugged: bool) -> ConditionReading:
    return ConditionReading(plugged, "this machine is plugged in" if plugged else "this machine runs on its battery")


class UnmeteredSource:
    """Reads from NetworkManager whether the network is not metered."""

    def __init__(self, services: SystemServices) -> None:
        self._services = services

    async def read(self) -> ConditionReading:
        try:
            metered = await self._services.get(NETWORK, "Metered")
        except FactUnavailable as reason:
            return ConditionReading(None, f"whether the network is metered is not known: {reason}")
        if metered in METERED:
            return ConditionReading(False, "the network is metered")
        if metered in FREE:
            return ConditionReading(True, "the network is not metered")
        return ConditionReading(None, "NetworkManager does not know whether the network is metered")


def source_of(condition: str, services: SystemServices) -> ConditionSource:
    """Create the source of a condition of `--when`."""
    if condition == IDLE:
        return IdleSource(services)
    if condition == PLUGGED_IN:
        return PluggedInSource(services)
    assert condition == UNMETERED, condition
    return UnmeteredSource(services)
