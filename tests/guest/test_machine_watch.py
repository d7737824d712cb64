"""The watch of a volunteer's machine, and its effect on the volunteer's pause."""

from __future__ import annotations

import asyncio

from peer.clock.quiet_hours import DAY, QuietHours
from peer.guest.conditions import ConditionReading
from peer.guest.options import GuestOptions
from peer.guest.watch import MachineWatch, machine_watch
from peer.observe.status.value import ConditionStatus
from peer.rounds.pause import LocalPause


class Switch:
    """A source whose reading the test sets."""

    def __init__(self) -> None:
        self.holds: bool | None = True

    async def read(self) -> ConditionReading:
        return ConditionReading(self.holds, f"it is {self.holds}")


class Machine:
    """A machine with two conditions, and its volunteer's pause, at noon."""

    def __init__(self, quiet: QuietHours | None = None) -> None:
        self.power, self.idle = Switch(), Switch()
        self.now = 0.0
        self.said: list[str] = []
        sources = {"plugged-in": self.power, "idle": self.idle}
        self.watch = MachineWatch(sources, self.said.append, settle_s=10.0, now=lambda: self.now)
        self.pause = LocalPause(quiet=quiet, minute=lambda now: int(self.now // 60) % DAY, machine=self.watch)

    def look(self, passed_s: float = 1.0) -> bool:
        """Return whether training is paused `passed_s` seconds later."""
        self.now += passed_s
        asyncio.run(self.watch.look())
        return self.pause.active.is_set()


def test_a_lost_condition_pauses_at_once_and_says_why() -> None:
    machine = Machine()
    assert not machine.look()
    machine.power.holds = False
    assert machine.look()
    assert machine.pause.reason() == "it is False (--when plugged-in)"
    assert machine.pause.report().conditions["plugged-in"] == ConditionStatus(
        value=False, why=machine.pause.reason(), measured=""
    )
    machine.power.holds = True
    assert machine.look(), "it has to hold for a while"
    assert not machine.look(10.0)
    assert machine.said == ["no training: it is False (--when plugged-in)", "all conditions hold: training may go on"]


def test_what_the_system_does_not_tell_is_said_once_and_allowed() -> None:
    machine = Machine()
    machine.idle.holds = None
    for _ in range(3):
        assert not machine.look()
    assert machine.said == ["--when idle counts as fulfilled: it is None"]


def test_the_volunteers_word_overrules_what_holds_now_and_nothing_later() -> None:
    machine = Machine()
    machine.power.holds = False
    assert machine.look()
    machine.pause.resume()
    assert not machine.look()
    machine.idle.holds = False
    assert machine.look(), "that one was not overruled"
    machine.idle.holds = True
    machine.look()
    assert not machine.look(10.0)
    machine.power.holds = True
    machine.look()
    machine.look(10.0)
    machine.power.holds = False
    assert machine.look(), "it ended in between"


def test_a_pause_by_hand_holds_though_all_conditions_do() -> None:
    machine = Machine()
    machine.pause.pause()
    assert machine.look()
    machine.pause.resume()
    assert not machine.look()


def test_quiet_hours_and_conditions_hold_side_by_side() -> None:
    machine = Machine(QuietHours.parse("00:00-00:01"))
    assert machine.look()
    machine.power.holds = False
    machine.look()
    assert machine.pause.reason() == "quiet hours 00:00-00:01; it is False (--when plugged-in)"
    machine.look(60.0)
    machine.pause.look()
    assert machine.pause.reason() == "it is False (--when plugged-in)"


def test_within_its_context_the_watch_notices_by_itself() -> None:
    async def main() -> None:
        power, changed = Switch(), asyncio.Event()

        class Notice:
            closed = False

            async def changed(self, within_s: float) -> None:
                await changed.wait()
                changed.clear()

            async def close(self) -> None:
                self.closed = True

        notice = Notice()
        watch = MachineWatch({"plugged-in": power}, lambda line: None, notice)
        pause = LocalPause(machine=watch)
        async with asyncio.timeout(180), watch.running():
            power.holds = False
            changed.set()
            await pause.active.future
        assert notice.closed

    asyncio.run(main())


def test_who_asks_for_nothing_is_watched_by_nothing() -> None:
    watch = machine_watch(GuestOptions(), lambda line: None)

    async def main() -> None:
        async with watch.running():
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert watch.report() == {}
    assert set(machine_watch(GuestOptions(max_temperature=85.0), lambda line: None).report()) == {"cool"}


def test_who_joins_waits_for_a_network_that_costs_nothing_or_for_the_volunteers_word() -> None:
    network, told = Switch(), list[str]()
    watch = MachineWatch({"unmetered": network}, lambda line: None, settle_s=0.0)
    pause = LocalPause(machine=watch)
    network.holds = False

    async def costs_nothing(seconds: float) -> None:
        network.holds = True
        await watch.look()
        await watch.look()

    async def is_told(seconds: float) -> None:
        pause.resume()

    async def main() -> None:
        for change in (costs_nothing, is_told):
            network.holds = False
            await watch.look()
            await pause.until_unmetered(told.append, change)

    asyncio.run(main())
    assert told == ["waiting to fetch the run: it is False (--when unmetered)"] * 2
