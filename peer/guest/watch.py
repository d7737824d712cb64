"""Watches the conditions for training on a volunteer's machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from peer.aio.tasks import background_task
from peer.guest.conditions import COOL, ConditionReading, ConditionSource, NoServices, SystemServices
from peer.guest.options import GuestOptions
from peer.guest.settling import SETTLE_S, SettledCondition

LOOK_EVERY_S = 5.0
"""Seconds between two reads of all sources. A reported change ends the wait early."""

Say = Callable[[str], None]


class ChangeNotice(Protocol):
    """Wakes the watch when a condition may have changed."""

    async def changed(self, within_s: float) -> None:
        """Return after `within_s` seconds, or earlier when something may have changed."""

    async def close(self) -> None:
        """Release connections. Never raises."""


class TimerNotice:
    """A `ChangeNotice` that only waits for the time, for sources that report no changes."""

    async def changed(self, within_s: float) -> None:
        await asyncio.sleep(within_s)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class MachineWatch:
    """Watches the conditions under which a volunteer allows training, and reports the ones that are not met.

    `holds`: unmet condition -> reason. `listeners` are called whenever `holds` changes.

    `sources`: condition -> its source. `say` prints a line for the volunteer. `notice` wakes the watch early when a
    condition may have changed. `now`: monotonic seconds."""

    def __init__(
        self,
        sources: Mapping[str, ConditionSource],
        say: Say,
        notice: ChangeNotice | None = None,
        settle_s: float = SETTLE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._say = say
        self._notice = notice or TimerNotice()
        self._now = now
        self._settled = {name: SettledCondition(settle_s) for name in sources}
        self._unavailable: dict[str, str] = {}
        self.holds: dict[str, str] = {}
        self.listeners: list[Callable[[], None]] = []

    async def look(self) -> None:
        """Read all sources and update `holds`."""
        for name, source in self._sources.items():
            reading = await source.read()
            self._settled[name].update(reading, self._now())
            if reading.holds is None and name not in self._unavailable:
                self._unavailable[name] = reading.why
                self._say(f"{option_of(name)} counts as fulfilled: {reading.why}")
            elif reading.holds is not None:
                self._unavailable.pop(name, None)
        self._notify()

    async def run(self) -> None:
        """Keep `holds` up to date until cancelled."""
        try:
            while True:
                await self.look()
                now = self._now()
                soon = min((one.settles_in(now) for one in self._settled.values()), default=LOOK_EVERY_S)
                await self._notice.changed(min(LOOK_EVERY_S, soon))
        finally:
            await self._notice.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch within the context. Its body begins after the first read of all sources."""
        if not self._sources:
            yield
            return
        await self.look()
        async with background_task(self.run()):
            yield

    def _notify(self) -> None:
        now = self._now()
        found = {
            name: f"{why} ({option_of(name)})" for name, one in self._settled.items() if (why := one.block_reason(now))
        }
        if found == self.holds:
            return
        if found.keys() != self.holds.keys():
            why = "; ".join(found.values())
            self._say(f"no training: {why}" if found else "all conditions hold: training may go on")
        self.holds = found
        for listener in self.listeners:
            listener()

    def report(self) -> dict[str, ConditionReading]:
        """Return, for `peer status`, the last reading of each condition. The `why` of an unmet condition is its entry
        in `holds`."""
        return {
            name: replace(one.reading, why=self.holds.get(name, one.reading.why)) for name, one in self._settled.items()
        }


def option_of(condition: str) -> str:
    """Return the command-line option that sets a condition."""
    return "--max-temperature" if condition == COOL else f"--when {condition}"


def machine_watch(options: GuestOptions, say: Say) -> MachineWatch:
    """Create the watch of this machine. Optional libraries are imported only for the conditions in `options`."""
    sources: dict[str, ConditionSource] = {}
    notice: ChangeNotice | None = None
    if options.when:
        from peer.guest.sources import source_of

        services: SystemServices = NoServices()
        if sys.platform == "linux":
            from peer.guest.system_bus import SystemBus

            services = notice = SystemBus()
        sources |= {name: source_of(name, services) for name in options.when}
    if options.max_temperature is not None:
        from peer.guest.temperature import CoolSource, TemperatureSensors

        sources[COOL] = CoolSource(options.max_temperature, TemperatureSensors().hottest)
    return MachineWatch(sources, say, notice)
