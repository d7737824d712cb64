"""When a peer looks into the directory, and the records that callers show in between."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import LONG_ROUND_S, LOOK_EVERY_S, TOLD_S, PeerTable, lifetime, pace
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status
from peer.protocol.swarm.failure_detection import DOUBT_S

RUN = RunId(b"r" * 32)
ME, OTHER, LATE = PeerId("me"), PeerId("other"), PeerId("late")
ROUND_S = 300.0


class Table:
    """A peer table in a run of long rounds, with one other peer in its directory."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.hub = MemoryDirectoryHub(self.clock.now)
        self.hub.hide = lambda reader, other: False
        self.directory = MemoryDirectory(self.hub, ME, RUN)
        self.detector = FailureDetector(self.clock.now, lifetime(pace(ROUND_S)), pace(ROUND_S))
        own = OwnRecord(lambda: self.record(ME), lambda: self.record(ME))
        self.view = PeerTable(self.directory, self.clock, random.Random(0), own, self.detector, pace(ROUND_S))
        self.looks: list[float] = []
        look = self.directory.peers

        async def counted() -> dict[PeerId, PeerRecord]:
            self.looks.append(self.clock.now())
            return await look()

        self.directory.peers = counted  # type: ignore[method-assign]

    def record(self, peer: PeerId, status: Status = Status.TRAINING) -> PeerRecord:
        now = self.clock.now()
        return PeerRecord(peer, RUN, ("host:1",), True, 1, 1, 0, 1.0, status, now, now + lifetime(pace(ROUND_S)))

    async def run(self, seconds: float) -> list[float]:
        """Run for some seconds, with another peer that renews its record. Return the seconds between looks."""
        end, duty = self.clock.now() + seconds, asyncio.create_task(self.view.run())
        while self.clock.now() < end:
            self.hub.store_unsigned(self.record(OTHER))
            await self.clock.sleep(min(100.0, end - self.clock.now()))
        duty.cancel()
        await asyncio.wait({duty})
        return [after - before for before, after in pairwise(self.looks)]


def test_looks_are_frequent_after_a_start_and_one_a_long_round_later() -> None:
    async def scenario() -> None:
        pauses = await Table().run(3600.0)
        assert pauses[0] < 1.3 * LOOK_EVERY_S
        assert min(pauses[-5:]) > 0.75 * ROUND_S
        assert max(pauses) < 1.25 * ROUND_S

    run_virtual(scenario())


def test_a_suspicion_brings_looks_until_the_suspect_is_back() -> None:
    async def scenario() -> None:
        table = Table()
        running = asyncio.create_task(table.run(2 * 3600.0))
        await table.clock.sleep(3650.0)
        table.detector.failed(OTHER, "it did not answer", 1.0)
        failed = table.clock.now()
        await table.clock.sleep(2 * DOUBT_S)
        assert any(failed < look <= failed + 1.5 * DOUBT_S for look in table.looks)
        assert not table.detector.membership.doubts(), "a later record was seen"
        later = [after for after in await running if after < ROUND_S / 2]
        assert len(later) < 10, "and looks are rare again"

    run_virtual(scenario())


def test_whoever_calls_is_listed_until_a_look_that_does_not_show_it() -> None:
    async def scenario() -> None:
        table = Table()
        await table.view.look()
        table.view.learn(table.record(LATE))
        await table.clock.sleep(10 * TOLD_S)
        assert LATE in table.view.peers, "no look has been taken since"
        await table.view.look()
        assert LATE not in table.view.peers

    run_virtual(scenario())


def test_a_record_is_renewed_at_a_third_of_its_life_also_when_nothing_changes() -> None:
    async def scenario() -> None:
        table, announced = Table(), list[float]()
        announce = table.directory.announce

        async def noted(record: PeerRecord) -> None:
            announced.append(record.issued_at)
            await announce(record)

        table.directory.announce = noted  # type: ignore[method-assign]
        await table.run(7200.0)
        assert max(after - before for before, after in pairwise(announced)) <= lifetime(pace(ROUND_S)) / 3 + 1.0

    run_virtual(scenario())


@pytest.mark.parametrize("round_s", [None, 2.0, 6.0, 20.0, 60.0, 119.0, LONG_ROUND_S, 200.0, 300.0, 3600.0])
def test_a_record_outlives_two_looks_and_its_renewal(round_s: float | None) -> None:
    look_s = pace(round_s)
    assert LOOK_EVERY_S <= look_s <= 300.0
    assert lifetime(look_s) / 3 + 1.2 * look_s < lifetime(look_s) <= MAX_RECORD_TTL_S
    assert round_s is None or look_s <= max(LOOK_EVERY_S, round_s)
    assert DOUBT_S <= 60.0
