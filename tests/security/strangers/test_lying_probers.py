"""Lying probers: neither one key nor a dozen can add an address to a peer's record or make the peer count as closed."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.reachability import ReachabilityProbe
from peer.protocol.messages import PeerId, PeerRecord, Probed, RunId, Status
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server import service

RUN = RunId(b"r" * 32)
OURS = "192.0.2.7:4810"
VICTIM = "198.51.100.4:443"


def record(name: str, endpoint: str) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (endpoint,), True, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 1e9)


HOMES = [record(f"home {number}", f"203.0.{number}.1:4810") for number in range(3)]
KEYS = [record(f"key {number}", f"198.18.0.{number}:4810") for number in range(40)]


class Swarm:
    """Honest homes reach us at our address. The keys of one block answer anything."""

    def __init__(self, *answered: str) -> None:
        self.answered = answered
        self.asked = list[PeerId]()

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        self.asked.append(by.peer_id)
        await asyncio.sleep(0.1)
        answered = endpoints if by.peer_id.startswith("home") else self.answered
        return Probed((*endpoints, *answered), answered, "", by.endpoints[0])

    def take_callers(self) -> tuple[str, ...]:
        return ()

    async def watch(self, known: list[PeerRecord], seed: int) -> ReachabilityProbe:
        reach = ReachabilityProbe(cast(Any, self), VirtualClock(), random.Random(seed), lambda: (OURS,))

        async def peers() -> dict[PeerId, PeerRecord]:
            return {one.peer_id: one for one in known}

        running = asyncio.create_task(reach.run(peers))
        await asyncio.sleep(1200.0)
        running.cancel()
        await asyncio.wait({running})
        return reach


def test_forty_keys_of_one_block_do_not_close_a_peer() -> None:
    for seed in range(5):
        swarm = Swarm()
        reach = run_virtual(swarm.watch([*KEYS, *HOMES], seed))
        assert reach.reachability.reachable() is True, reach.reachability.why()
        assert swarm.asked[:3].count(next(one for one in swarm.asked if one.startswith("key"))) <= 1


def test_alone_with_the_keys_of_one_block_and_a_silent_home_nothing_is_known() -> None:
    class OneHomeOnly(Swarm):
        async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
            found = await super().probe(by, endpoints, timeout_s)
            return Probed((), (), "busy") if by.peer_id.startswith("home") else found

    reach = run_virtual(OneHomeOnly().watch([*KEYS, *HOMES], 1))
    assert reach.reachability.reachable() is None
    assert reach.reachable, "hoped"


def test_the_keys_of_one_block_write_nothing_into_our_record() -> None:
    for seed in range(5):
        reach = run_virtual(Swarm(VICTIM).watch([*KEYS, *HOMES], seed))
        assert set(reach.reachability.endpoints()) == {OURS}


def test_a_prober_that_is_really_asked_writes_no_address(monkeypatch: Any) -> None:
    """Over real gRPC: the lie of one prober arrives, but does not change our record."""

    async def lie(self: object, caller: PeerId, host: str, endpoints: list[str], port: int) -> Probed:
        return Probed((*endpoints, VICTIM), (VICTIM, *endpoints), "")

    monkeypatch.setattr(service.DialBack, "probe", lie)

    async def main() -> tuple[str, ...]:
        us, liar = Identity.generate(), Identity.generate()
        ends = [GrpcTransport(one, RUN, cast(Any, Greets()), RunClock().now) for one in (us, liar)]
        try:
            ports = [await end.start("127.0.0.1", 0) for end in ends]
            ours = (f"127.0.0.1:{ports[0]}",)
            reach = ReachabilityProbe(cast(Any, ends[0]), RunClock(), random.Random(1), lambda: ours)
            await reach.ask_if_due([record(liar.peer_id, f"127.0.0.1:{ports[1]}")])
            assert reach.reachability.reachable() is True
            return tuple(endpoint for endpoint in reach.reachability.endpoints() if endpoint != ours[0])
        finally:
            for end in ends:
                await end.close()

    assert asyncio.run(main()) == ()


class Greets:
    """A handler that only serves Hellos."""

    def on_hello(self, record: PeerRecord) -> None:
        """Ignore the record."""
