"""How far strangers can move a peer's clock, however often it reads the time."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from peer.clock.clock_filter import OPERATOR
from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.membership.suspend import refresh
from peer.protocol.endpoints import HERE, voice_of
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status, Welcome
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport

RUN, BOUND_S, WAKES = RunId(b"r" * 32), 60.0, 6


def record(name: str, endpoint: str) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (endpoint,), True, 1, 1, 0, 1.0, Status.TRAINING, 0.0, 1e12)


class View:
    """The peers that are remembered after a sleep."""

    def __init__(self, known: list[PeerRecord]) -> None:
        self.known = known

    def remembered(self) -> list[PeerRecord]:
        return self.known

    async def refresh(self) -> None:
        """Do nothing: this test has no directory."""


class Wire:
    """All keys of one block report a time that is just accepted at present. All other keys report the right time."""

    def __init__(self, clock: RunClock) -> None:
        self.clock = clock

    async def forget_connections(self) -> None:
        """Do nothing: there are none."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        if to.peer_id.startswith("liar"):
            return Welcome(self.clock.correction + BOUND_S - 1.0, 0.1, "", voice_of(to.endpoints[0]))
        await asyncio.sleep(0.001)  # a liar is the quickest
        return Welcome(0.0, 0.1, "", OPERATOR if to.peer_id == "operator" else voice_of(to.endpoints[0]))


LIARS = [record(f"liar {number}", f"198.51.100.{number}:1") for number in range(40)]
HOMES = [record(f"home {number}", f"203.0.{number}.1:1") for number in range(4)]


async def awakened(known: list[PeerRecord]) -> float:
    """Return the correction after several wake-ups."""
    clock = RunClock()
    clock.bound(BOUND_S)
    for seed in range(WAKES):
        await refresh(cast(Any, Wire(clock)), clock, cast(Any, View(known)), random.Random(seed))
    return clock.correction


def test_lies_do_not_add_up_where_all_lie() -> None:
    assert abs(asyncio.run(awakened(LIARS))) <= BOUND_S


@pytest.mark.parametrize("homes", [1, 4])
def test_the_keys_of_one_block_do_not_move_the_clock(homes: int) -> None:
    assert asyncio.run(awakened([*LIARS, *HOMES[:homes]])) == 0.0


def test_over_real_hellos_the_bound_counts_from_the_raw_clock() -> None:
    """A real server whose clock is always ahead by just the accepted offset."""

    async def main() -> tuple[float, set[str]]:
        clock = RunClock()
        clock.bound(BOUND_S)
        ours = GrpcTransport(
            Identity.generate(), RUN, cast(Any, Greets()), clock.now, correction=lambda: clock.correction
        )
        liar = GrpcTransport(Identity.generate(), RUN, cast(Any, Greets()), lambda: clock.now() + BOUND_S - 1.0)
        voices = set[str]()
        try:
            for end in (ours, liar):
                end.begin_run(RunTerms(b"L" * 32, 2**20, max_clock_offset_s=BOUND_S))
            port = await liar.start("127.0.0.1", 0)
            known = [record(liar._config.identity.peer_id, f"127.0.0.1:{port}")]
            for seed in range(WAKES):
                await refresh(cast(Any, ours), clock, cast(Any, View(known)), random.Random(seed))
                voices.add((await ours.hello(known[0], 5.0)).voice)
            return clock.correction, voices
        finally:
            await ours.close()
            await liar.close()

    correction, voices = asyncio.run(main())
    assert abs(correction) <= BOUND_S
    assert voices == {HERE}


class Greets:
    """A handler that only serves Hellos."""

    group = None

    def on_hello(self, record: PeerRecord) -> None:
        """Ignore the record."""
