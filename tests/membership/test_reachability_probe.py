"""How soon a peer knows whether others can dial it, in any order of probers."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from typing import Any, cast

from peer.errors import PartnerLost
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.reachability import SHUNNED_S, ReachabilityProbe
from peer.protocol.messages import PeerId, PeerRecord, Probed, RunId, Status
from peer.protocol.swarm.reachability import MAX_VOICES, UNSETTLED_EVERY_S

HERE = ("192.0.2.7:4810",)
DIALS_S = 4.0
"""Seconds after which a prober gives up dialling a home that accepts no connections."""


def address(name: str) -> str:
    """Return an address in a network of this peer's own."""
    return f"198.{18 + sum(name.encode()) % 2}.{zlib.crc32(name.encode()) % 256}.1:4810"


def record(name: str) -> PeerRecord:
    return PeerRecord(
        PeerId(name), RunId(b"r" * 32), (address(name),), True, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 900
    )


class Others:
    """Probers: some can be called and cannot dial us; the others claim to be callable, as every peer does at first."""

    def __init__(self, able: set[str], names: list[str]) -> None:
        self.clock, self.able, self.records = VirtualClock(), able, {PeerId(name): record(name) for name in names}
        self.asked: list[tuple[float, str]] = []
        self.told: list[tuple[float, bool]] = []
        self.callers: list[str] = []

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        self.asked.append((self.clock.now() - EPOCH, by.peer_id))
        if by.peer_id not in self.able:
            await asyncio.sleep(timeout_s)
            raise PartnerLost("it did not answer")
        await asyncio.sleep(DIALS_S)
        return Probed(endpoints, (), "no answer there", by.endpoints[0])

    def take_callers(self) -> tuple[str, ...]:
        callers, self.callers = tuple(self.callers), []
        return callers

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return self.records

    async def watch(self, seconds: float, seed: int = 0) -> ReachabilityProbe:
        def changed(reachable: bool, why: str) -> None:
            self.told.append((self.clock.now() - EPOCH, reachable))

        reach = ReachabilityProbe(cast(Any, self), self.clock, random.Random(seed), lambda: HERE, changed)
        running = asyncio.create_task(reach.run(self.peers))
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.wait({running})
        return reach


def test_one_that_cannot_be_called_does_not_hold_up_the_answer() -> None:
    for seed in range(8):  # the seed determines the order in which peers are drawn
        others = Others({"public", "open"}, ["public", "open", "home"])
        reach = run_virtual(others.watch(20.0, seed))
        assert not reach.reachable
        assert others.told == [(DIALS_S, False)]


def test_while_nobody_has_a_word_others_are_asked_soon() -> None:
    others = Others(set(), [f"home-{number}" for number in range(9)])
    reach = run_virtual(others.watch(60.0))
    assert reach.reachable, "nobody knows"
    moments = sorted({at for at, _ in others.asked})
    calls = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(calls) < UNSETTLED_EVERY_S, calls
    assert len({peer for _, peer in others.asked}) > MAX_VOICES, "not the same ones for ever"
    others = Others({"public", "open"}, ["public", "open", *others.records])
    run_virtual(others.watch(120.0))
    assert others.told, "one of ten, found in time"


def test_with_a_first_word_one_at_a_time_is_asked() -> None:
    names = ["a", "b", "c", "d"]
    others = Others(set(names), names)
    reach = run_virtual(others.watch(3 * UNSETTLED_EVERY_S))
    assert [at for at, _ in others.asked[:MAX_VOICES]] == [0.0] * MAX_VOICES
    assert len({peer for _, peer in others.asked[:MAX_VOICES]}) == MAX_VOICES
    assert len(others.asked) == MAX_VOICES, "and with one voice of all nobody for long"
    assert reach.reachability.settled()
    others = Others({"a"}, ["a", "b"])
    run_virtual(others.watch(SHUNNED_S + 2 * UNSETTLED_EVERY_S))
    again = [peer for at, peer in others.asked if at > 0.0]
    assert again[0] == "a", "who did not answer is let alone for a while"
    assert "b" in again, "and then asked before those who have said their word"


def test_a_further_address_is_asked_about_at_once_and_nothing_is_hoped_meanwhile() -> None:
    class WithAPort(Others):
        mapped: tuple[str, ...] = ()

        async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
            await super().probe(by, endpoints, timeout_s)
            return Probed(endpoints, tuple(e for e in endpoints if e in self.open), "", by.endpoints[0])

        open: tuple[str, ...] = ()

    async def play(others: WithAPort) -> list[tuple[float, bool]]:
        def changed(reachable: bool, why: str) -> None:
            others.told.append((others.clock.now() - EPOCH, reachable))

        ours = lambda: (*others.mapped, *HERE)  # noqa: E731
        reach = ReachabilityProbe(cast(Any, others), others.clock, random.Random(1), ours, changed)
        running = asyncio.create_task(reach.run(others.peers))
        await asyncio.sleep(100.0)
        assert not reach.reachable
        others.mapped = ("192.0.2.7:31000",)
        for _ in range(60):
            await asyncio.sleep(0.1)
            assert not reach.reachable, "a claim alone"
        others.open = others.mapped
        await asyncio.sleep(60.0)
        assert reach.reachable
        assert reach.reachability.endpoints() == others.mapped
        running.cancel()
        await asyncio.wait({running})
        return others.told

    names = ["public", "open", "third"]
    told = run_virtual(play(WithAPort(set(names), names)))
    assert [reachable for _, reachable in told] == [False, True]


def test_peers_of_our_own_network_are_not_asked() -> None:
    """Two homes behind one router reach each other, which does not show that others reach them."""
    others = Others({"public", "neighbour"}, ["public", "neighbour"])

    async def play() -> None:
        reach = ReachabilityProbe(
            cast(Any, others),
            others.clock,
            random.Random(1),
            lambda: HERE,
            near=lambda: {PeerId("neighbour")},
        )
        running = asyncio.create_task(reach.run(others.peers))
        await asyncio.sleep(60.0)
        running.cancel()
        await asyncio.wait({running})

    run_virtual(play())
    assert {peer for _, peer in others.asked} == {"public"}
