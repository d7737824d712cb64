"""Witnesses are asked about a suspect at once; without suspects the detector does nothing."""

from __future__ import annotations

import asyncio
import random
from typing import cast

from peer.lab.sim.virtual_clock import nap, run_virtual
from peer.membership.failure_detector import FailureDetector
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status, Vouched

ABOUT, BY = PeerId("about"), PeerId("by")


def record(peer: PeerId) -> PeerRecord:
    return PeerRecord(peer, RunId(bytes(32)), ("memory:1",), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 1e9)


class Asked:
    """A witness that reaches every peer."""

    def __init__(self) -> None:
        self.at: list[tuple[float, PeerId, PeerId]] = []

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        self.at.append((asyncio.get_running_loop().time(), by.peer_id, about))
        return Vouched(True, "it answers")


def test_nothing_is_looked_at_before_somebody_is_suspected_and_then_at_once() -> None:
    async def main() -> None:
        loop, asked, looks = asyncio.get_running_loop(), Asked(), list[float]()
        detector = FailureDetector(loop.time)

        def peers() -> dict[PeerId, PeerRecord]:
            looks.append(loop.time())
            return {ABOUT: record(ABOUT), BY: record(BY)}

        task = asyncio.create_task(detector.run(cast(Transport, asked), peers, random.Random(0), nap))
        for at in (100.0, 200.0):
            await nap(at - loop.time())
            detector.failed(ABOUT, "it did not answer", 0.0)
            await nap(50.0)
        task.cancel()
        await asyncio.wait({task})
        assert asked.at == [(100.0, BY, ABOUT), (200.0, BY, ABOUT)]
        assert looks == [100.0, 200.0]

    run_virtual(main())
