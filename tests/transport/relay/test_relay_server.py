"""The relay server, with connections in memory and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from peer.errors import PartnerRefused, RelayBusy
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId
from peer.protocol.relay.circuits import CIRCUITS_OF_TARGET, CLAIM_S, OF_TARGET_FOR_PROVEN
from peer.transport.relay.pipe import Stream
from peer.transport.relay.relay_server import IDLE_S, MAX_CALLS_WAITING, OFF, RelayServer, Reservation
from peer.transport.relay.throttle import RelayThrottle
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter, NoBudget
from tests.support.memory_streams import connection, ends, is_gone, run_streams

HOME, CALLER = PeerId("home"), PeerId("caller")
AT_HOME, AT_CALLER = "ipv4:192.0.2.7:40007", "ipv4:198.51.100.9:40009"


class Quota(NoBudget):
    why = ""

    def refusal_reason(self, *, stranger: bool = False) -> str:
        return self.why


class Relay:
    """A relay server, and the connections to it."""

    def __init__(self, rate: float | None = 1e6) -> None:
        now = asyncio.get_running_loop().time
        self.quota = Quota()
        caps = Caps(Pacer(None), Pacer(None), Meter(budget=self.quota))
        throttle = None if rate is None else RelayThrottle(rate, caps, now)
        self.relay_server = RelayServer(throttle, now, random.Random(1))

    def reserve(self, peer: PeerId = HOME, block: str = "home block", *, proven: bool = False) -> Reservation:
        return self.relay_server.reserve(peer, block, proven=proven)

    def call(
        self, caller: str = CALLER, target: PeerId = HOME, block: str = "caller block", needs: float = 0.0
    ) -> bytes:
        return self.relay_server.call(PeerId(caller), target, block, bulk=True, proven=False, needs=needs)

    def arrive(self, slip: bytes, address: str) -> Stream | None:
        """Present a slip. Return our end of the connection; None: the slip is invalid."""
        claimed = self.relay_server.claim(slip)
        if claimed is None:
            return None
        ours, theirs = connection()
        circuit, caller = claimed
        self.relay_server.arrived(circuit, theirs, address, caller=caller)
        return ours

    async def circuit(
        self, held: Reservation, caller: str = CALLER, block: str = "caller block"
    ) -> tuple[Stream, Stream]:
        """Open a circuit. Return its outer ends, the caller's first."""
        slip = self.call(caller, held.peer, block)
        one = self.arrive(slip, AT_CALLER)
        other = self.arrive(held.calls.get_nowait(), AT_HOME)
        assert one is not None
        assert other is not None
        assert await told(one) == AT_HOME
        assert await told(other) == AT_CALLER
        return one, other


async def told(stream: Stream) -> str:
    size = (await stream.reader.readexactly(1))[0]
    return (await stream.reader.readexactly(size)).decode()


def scenario(test: Callable[[Relay], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            relay = Relay()
            try:
                await test(relay)
            finally:
                await relay.relay_server.close()
                assert asyncio.all_tasks() == {asyncio.current_task()}

        run_streams(main())

    run.__name__ = test.__name__
    return run


async def turns(number: int = 50) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("caller_first", [True, False])
def test_each_end_hears_where_the_other_one_is_and_then_bytes_pass(caller_first: bool) -> None:
    @scenario
    async def attempt(relay: Relay) -> None:
        held = relay.reserve()
        slip = relay.call()
        slips = [(slip, AT_CALLER), (held.calls.get_nowait(), AT_HOME)]
        there = [relay.arrive(*one) for one in (slips if caller_first else slips[::-1])]
        one, other = there if caller_first else there[::-1]
        assert one is not None
        assert other is not None
        assert (await told(one), await told(other)) == (AT_HOME, AT_CALLER)
        one.send(b"question")
        other.send(b"answer")
        assert await other.reader.readexactly(8) == b"question"
        assert await one.reader.readexactly(6) == b"answer"
        assert to_json(relay.relay_server.report())["circuits"] == 1
        one.close()
        assert await ends(other)
        other.close()
        await turns()
        assert to_json(relay.relay_server.report()) == {
            "rate": 1e6,
            "reservations": 1,
            "circuits": 0,
            "bytes": 14,
            "why_not": "",
        }

    attempt()


@scenario
async def test_a_first_end_may_speak_before_the_second_is_there(relay: Relay) -> None:
    held = relay.reserve()
    one = relay.arrive(relay.call(), AT_CALLER)
    assert one is not None
    one.send(b"early")
    await turns()
    other = relay.arrive(held.calls.get_nowait(), AT_HOME)
    assert other is not None
    assert await told(other) == AT_CALLER
    assert await other.reader.readexactly(5) == b"early"


@scenario
async def test_an_end_whose_other_end_does_not_come_is_dropped(relay: Relay) -> None:
    relay.reserve()
    one = relay.arrive(relay.call(), AT_CALLER)
    assert one is not None
    assert await ends(one)
    assert asyncio.get_running_loop().time() == CLAIM_S
    assert to_json(relay.relay_server.report())["circuits"] == 0


@pytest.mark.parametrize("leaves", ["caller", "target"])
def test_an_end_that_left_before_the_other_one_came_costs_no_place(leaves: str) -> None:
    @scenario
    async def attempt(relay: Relay) -> None:
        held = relay.reserve()
        slips = [(relay.call(), AT_CALLER), (held.calls.get_nowait(), AT_HOME)]
        first, second = slips if leaves == "caller" else slips[::-1]
        one = relay.arrive(*first)
        assert one is not None
        one.abort()
        await turns()
        other = relay.arrive(*second)
        assert other is not None
        assert await told(other)
        assert await ends(other)
        other.close()
        await turns()
        assert to_json(relay.relay_server.report())["circuits"] == 0

    attempt()


@scenario
async def test_a_slip_works_once(relay: Relay) -> None:
    held = relay.reserve()
    slip = relay.call()
    assert relay.arrive(slip, AT_CALLER) is not None
    assert relay.arrive(slip, AT_CALLER) is None
    assert relay.arrive(held.calls.get_nowait(), AT_HOME) is not None
    assert relay.arrive(slip, AT_CALLER) is None
    assert relay.relay_server.claim(None) is None
    assert relay.relay_server.claim(b"\0" * 16) is None


@scenario
async def test_a_silent_circuit_ends(relay: Relay) -> None:
    one, other = await relay.circuit(relay.reserve())
    assert await ends(one)
    assert await ends(other)
    assert asyncio.get_running_loop().time() == pytest.approx(IDLE_S)


@scenario
async def test_a_peer_that_tells_of_nothing_is_not_called_for_ever(relay: Relay) -> None:
    relay.reserve()
    for number in range(MAX_CALLS_WAITING):
        relay.call(f"caller {number}", block=f"block {number}")
    with pytest.raises(PartnerRefused, match="wait for that peer") as refused:
        relay.call("one more", block="elsewhere")
    assert refused.value.code == "busy"


@scenario
async def test_a_second_reservation_takes_the_place_of_the_first(relay: Relay) -> None:
    first = relay.reserve()
    second = relay.reserve()
    assert first.lost.is_set()
    assert not second.lost.is_set()
    relay.relay_server.release(first)
    relay.call()
    assert second.calls.qsize() == 1
    assert first.calls.empty()
    relay.relay_server.release(second)
    with pytest.raises(PartnerRefused, match="no place") as refused:
        relay.call()
    assert refused.value.code == "unreserved"


@scenario
async def test_one_that_loses_its_place_to_another_block_hears_it(relay: Relay) -> None:
    crowd = [relay.reserve(PeerId(f"peer {number}"), "crowd") for number in range(48)]
    relay.reserve(HOME, "elsewhere")
    assert [held.lost.is_set() for held in crowd] == [False] * 47 + [True]
    with pytest.raises(PartnerRefused):
        relay.call(target=crowd[-1].peer)
    relay.relay_server.release(crowd[-1])
    assert to_json(relay.relay_server.report())["reservations"] == 48


@pytest.mark.parametrize("carried", [True, False])
def test_a_circuit_that_gives_way_to_another_block_ends_at_once(carried: bool) -> None:
    @scenario
    async def attempt(relay: Relay) -> None:
        held, last = relay.reserve(), list[Stream]()
        for number in range(CIRCUITS_OF_TARGET - OF_TARGET_FOR_PROVEN):
            if carried:
                last = list(await relay.circuit(held, f"key {number}", "crowd"))
            else:
                slip = relay.call(f"key {number}", block="crowd")
                held.calls.get_nowait()
                one = relay.arrive(slip, AT_CALLER)
                assert one is not None
                last = [one]
        newcomer = await relay.circuit(held, "somebody", "elsewhere")
        await turns()
        assert all(is_gone(stream) for stream in last)
        newcomer[0].send(b"x")
        assert await newcomer[1].reader.readexactly(1) == b"x"
        assert to_json(relay.relay_server.report())["circuits"] == CIRCUITS_OF_TARGET - OF_TARGET_FOR_PROVEN

    attempt()


@scenario
async def test_swaps_that_would_be_too_slow_are_not_taken(relay: Relay) -> None:
    relay.reserve()
    relay.call(needs=200e3)
    relay.call("other", needs=200e3)
    with pytest.raises(RelayBusy):
        relay.call("third", needs=200e3)
    relay.call("third")
    await asyncio.sleep(CLAIM_S)  # virtual time, in which nobody claimed the circuit
    relay.call("fourth", needs=200e3)


@scenario
async def test_nobody_keeps_the_others_out_by_claims(relay: Relay) -> None:
    relay.reserve()
    relay.call("greedy", block="crowd", needs=500e3)
    for number in range(9):
        relay.call(f"key {number}", block="crowd", needs=1.0)
    relay.call("somebody", needs=200e3)
    with pytest.raises(RelayBusy):
        relay.call("somebody", needs=200e3)
    with pytest.raises(RelayBusy):
        relay.call("key 9", block="crowd", needs=200e3)
    with pytest.raises(RelayBusy):
        relay.call("somebody else", block="a third", needs=200e3)
    relay.call("somebody else", block="a third", needs=100e3)


def test_who_relays_nothing_says_so() -> None:
    async def main() -> None:
        relay = Relay(None)
        for ask in (relay.reserve, relay.call):
            with pytest.raises(PartnerRefused, match=OFF) as refused:
                ask()
            assert refused.value.code == "off"
        assert to_json(relay.relay_server.report())["why_not"] == OFF

    run_streams(main())


@scenario
async def test_a_quota_that_is_used_up_ends_what_is_relayed(relay: Relay) -> None:
    held = relay.reserve()
    relay.quota.why = "the quota of the day is used up"
    for ask in (relay.reserve, relay.call):
        with pytest.raises(PartnerRefused, match="quota") as refused:
            ask()
        assert refused.value.code == "budget"
    assert not held.lost.is_set()
    assert to_json(relay.relay_server.report())["why_not"] == relay.quota.why


@scenario
async def test_a_relay_that_closes_drops_everything(relay: Relay) -> None:
    held = relay.reserve()
    one, other = await relay.circuit(held)
    waiting = relay.arrive(relay.call(), AT_CALLER)
    just_begun = relay.arrive(relay.call("other"), AT_CALLER)
    held.calls.get_nowait()
    begun_too = relay.arrive(held.calls.get_nowait(), AT_HOME)  # its task has not run yet
    late = relay.call("late")
    await relay.relay_server.close()
    await turns()
    for stream in (one, other, waiting, just_begun, begun_too):
        assert stream is not None
        assert is_gone(stream)
    assert held.lost.is_set()
    arrived = relay.arrive(late, AT_CALLER)
    await turns()
    assert arrived is None or is_gone(arrived)
