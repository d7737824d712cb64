"""A suspension is noticed within a second, journaled, and recovered from before the next exchange. A step of the wall
clock moves nothing."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from peer.clock.clock_filter import KEPT_OFFSETS
from peer.clock.run_clock import RunClock
from peer.errors import PartnerLost
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import PeerTable
from peer.membership.suspend import BEAT_S, REFRESH_S, SETTLE_S, SuspendRecovery, refresh
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status, Welcome
from peer.protocol.swarm.suspend_detection import ClockReading, Slept

RUN, ME, OTHER = RunId(b"w" * 32), PeerId("me"), PeerId("other")


@dataclass
class Machine:
    """Clocks that advance with the event loop, and jump when the test says so."""

    slept: float = 0.0
    stopped: float = 0.0
    stepped: float = 0.0
    refreshed: list[float] = field(default_factory=list)
    takes_s: float = 0.5
    told: list[Slept] = field(default_factory=list)
    journal: list[events.Event] = field(default_factory=list)

    def read(self) -> ClockReading:
        now = asyncio.get_running_loop().time()
        awake = now + self.stopped
        return ClockReading(awake + self.slept, awake, awake + self.slept + self.stepped)

    async def refresh(self) -> None:
        await asyncio.sleep(self.takes_s)
        self.refreshed.append(asyncio.get_running_loop().time())

    def waking(self) -> SuspendRecovery:
        return SuspendRecovery(self.refresh, self.journal.append, self.told.append, self.read)


def test_a_sleep_is_noticed_within_a_beat_and_made_good_once() -> None:
    async def main() -> Machine:
        machine = Machine()
        running = asyncio.create_task(machine.waking().run())
        await asyncio.sleep(10.3)
        machine.slept = 3600.0
        await asyncio.sleep(BEAT_S + machine.takes_s)
        assert len(machine.refreshed) == 1
        await asyncio.sleep(20.0)
        running.cancel()
        await asyncio.wait({running})
        return machine

    machine = run_virtual(main())
    (woke,) = machine.journal
    assert isinstance(woke, events.Woke)
    assert woke.seconds == pytest.approx(3600.0, abs=BEAT_S)
    assert woke.suspended_s == pytest.approx(woke.seconds)
    assert woke.reason.startswith("was asleep for 3")
    assert len(machine.told) == len(machine.refreshed) == 1


def test_an_exchange_waits_for_the_refresh_even_before_the_beat_noticed() -> None:
    async def main() -> None:
        machine = Machine(takes_s=3.0)
        waking = machine.waking()
        running = asyncio.create_task(waking.run())
        await asyncio.sleep(0.1)
        await waking.settled()
        assert asyncio.get_running_loop().time() == pytest.approx(0.1), "all is well: nothing waits"
        machine.stopped = 20.0
        await waking.settled()
        assert machine.refreshed == [pytest.approx(3.1)]
        assert asyncio.get_running_loop().time() == pytest.approx(3.1)
        running.cancel()
        await asyncio.wait({running})

    run_virtual(main())


def test_a_refresh_that_hangs_holds_nothing_up_for_long() -> None:
    async def main() -> None:
        machine = Machine(takes_s=1e6)
        waking = machine.waking()
        running = asyncio.create_task(waking.run())
        await asyncio.sleep(0.1)
        machine.stopped = 20.0
        await waking.settled()
        assert asyncio.get_running_loop().time() == pytest.approx(0.1 + SETTLE_S)
        await asyncio.sleep(REFRESH_S)
        before = asyncio.get_running_loop().time()
        await waking.settled()
        assert asyncio.get_running_loop().time() == before
        assert len(machine.told) == 1, "the refresh itself is no sleep"
        running.cancel()
        await asyncio.wait({running})

    run_virtual(main())


def test_a_clock_that_is_set_is_told_and_nothing_else() -> None:
    async def main() -> Machine:
        machine = Machine()
        running = asyncio.create_task(machine.waking().run())
        await asyncio.sleep(3.0)
        machine.stepped = -600.0
        await asyncio.sleep(5.0)
        running.cancel()
        await asyncio.wait({running})
        return machine

    machine = run_virtual(main())
    (stepped,) = machine.journal
    assert isinstance(stepped, events.ClockStepped)
    assert stepped.seconds == pytest.approx(-600.0)
    assert machine.told == machine.refreshed == []


class Wire:
    """A transport with only the calls that recovery makes."""

    def __init__(self, offset_s: float = 0.0, answers: bool = True) -> None:
        self.calls, self.offset_s, self.answers = list[str](), offset_s, answers

    async def forget_connections(self) -> None:
        self.calls.append("forget")

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        self.calls.append(f"hello {to.peer_id}")
        if not self.answers:
            raise PartnerLost("gone")
        return Welcome(self.offset_s, 0.1, "")


def record(peer: PeerId, now: float) -> PeerRecord:
    return PeerRecord(peer, RUN, ("memory:1",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 45.0)


@pytest.mark.parametrize("answers", [True, False])
def test_after_an_hour_everybody_is_looked_for_and_asked_for_the_time(answers: bool) -> None:
    async def main() -> None:
        clock, hub = Forgetful(), MemoryDirectoryHub(VirtualClock().now)
        view = table(hub, clock)
        other, wire = MemoryDirectory(hub, OTHER, RUN), Wire(7.0, answers)
        await other.announce(record(OTHER, clock.now()))
        await view.look()
        view.detector.failed(OTHER, "no answer", 1.0)
        await asyncio.sleep(3600.0)
        assert view.peers == {}, "what was known has expired"
        await other.announce(record(OTHER, clock.now()))
        await refresh(wire_of(wire), clock, view, random.Random(0))
        assert wire.calls == ["forget", f"hello {OTHER}"]
        assert clock.forgot == 1
        assert set(view.peers) == {OTHER}
        assert to_json(view.detector.report())["suspected"] == []
        assert clock.now() - VirtualClock().now() == (7.0 if answers else 0.0)
        assert list(await other.peers()) == [ME], "our own record is out again"

    run_virtual(main())


def test_one_that_is_gone_does_not_keep_an_exchange_waiting() -> None:
    async def main() -> None:
        clock, hub = Forgetful(), MemoryDirectoryHub(VirtualClock().now)
        view = table(hub, clock)
        for number in range(4):
            peer = PeerId(f"{OTHER}{number}")
            await MemoryDirectory(hub, peer, RUN).announce(record(peer, clock.now()))
        await view.look()
        wire = Wire(7.0, True)
        hello = wire.hello

        async def slowly(to: PeerRecord, timeout_s: float) -> Welcome:
            if to.peer_id == f"{OTHER}0":
                await asyncio.sleep(timeout_s)
                raise PartnerLost("gone")
            return await hello(to, timeout_s)

        wire.hello = slowly  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        await refresh(wire_of(wire), clock, view, random.Random(0))
        assert asyncio.get_running_loop().time() - began < 1.0
        assert clock.now() - VirtualClock().now() == 7.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


class Forgetful(VirtualClock):
    """A clock that counts how often its offsets are forgotten."""

    forgot = 0

    def forget_offsets(self) -> None:
        self.forgot += 1


def table(hub: MemoryDirectoryHub, clock: VirtualClock) -> PeerTable:
    def describe() -> PeerRecord:
        return record(ME, clock.now())

    detector = FailureDetector(clock.now, 45.0, 3.0)
    own = OwnRecord(describe, describe)
    return PeerTable(MemoryDirectory(hub, ME, RUN), clock, random.Random(0), own, detector, look_every_s=3.0)


def wire_of(wire: Wire) -> Transport:
    return wire  # type: ignore[return-value]


def test_the_wall_clock_may_jump_and_rounds_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunClock()
    before = clock.now()
    monkeypatch.setattr("time.time", lambda: before + 3600.0)
    assert clock.now() - before < 60.0
    assert RunClock().now() - before < 60.0


def test_measured_offsets_are_forgotten_and_the_correction_stays() -> None:
    clock = RunClock()
    for _ in range(KEPT_OFFSETS):
        clock.observe(5.0)
    clock.forget_offsets()
    assert clock.correction == 5.0
    clock.observe(1.0)
    assert clock.correction == 1.0, "the first one measured after a sleep counts, not the median with old ones"
