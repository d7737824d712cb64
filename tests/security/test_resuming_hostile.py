"""Messages that a partner may send when it resumes a broken swap, and the answers to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, PartnerLost
from peer.identity import Identity
from peer.protocol.messages import Answer, PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport, Verdict
from peer.protocol.wire.frames import REWIND, Kind, PayloadWriter, pack, unpack
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.client.channels import CHANNEL_OPTIONS
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.wire.resumption import MOST_STREAMS
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, ended

RUN, KEY, NUMBER = RunId(b"R" * 32), RoundKey(1, 0), 77
OURS = bytes(range(256)) * 60_000
"""15 MB: more than is ever gone back for"""
THEIRS = b"theirs" * 1000


class Owner:
    """A handler that accepts every swap."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


class Victim:
    def __init__(self) -> None:
        self.identity = Identity.generate()
        owner: Any = Owner()
        self.transport = GrpcTransport(self.identity, RUN, owner, RunClock().now)
        self.transport.begin_run(RunTerms(b"L" * 32, 2**24))
        self.endpoint = ""

    def caller(self) -> HostileCaller:
        return HostileCaller(self.endpoint, PeerId(self.identity.peer_id), RUN, more=CHANNEL_OPTIONS)

    def swap(self, caller: HostileCaller, timeout_s: float = 10.0) -> asyncio.Task[SwapReport]:
        """Swap as our coordinator does when it is locked with the caller."""
        now = RunClock().now()
        record = PeerRecord(caller.me, RUN, (), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)
        sink = BufferSink(len(THEIRS))
        return asyncio.create_task(self.transport.swap(record, KEY, BytesSource(OURS), sink, timeout_s, False))

    @property
    def slots(self) -> dict[Any, Any]:
        return self.transport._service.swaps._slots

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            await asyncio.sleep(0.005)


def attack(test: Callable[[Victim, HostileCaller, bytes], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            victim = Victim()
            victim.endpoint = f"127.0.0.1:{await victim.transport.start('127.0.0.1', 0)}"
            try:
                async with asyncio.timeout(90), victim.caller() as caller:
                    await test(victim, caller, await caller.hello())
            finally:
                await victim.transport.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def opening(have: int = 0, number: int = NUMBER) -> bytes:
    body = pb.SwapOpen(round=1, codec="bf16", nbytes=len(THEIRS), max_chunk=2**17, have=have, swap=number)
    return pack(Kind.OPEN, 0, body.SerializeToString())


@asynccontextmanager
async def stream(caller: HostileCaller, token: bytes, have: int = 0, number: int = NUMBER) -> AsyncIterator[Any]:
    call = caller.open("Swap", token)
    await call.write(opening(have, number))
    try:
        yield call
    finally:
        call.cancel()


async def taken(call: Any, upto: int) -> int:
    """Read until `upto` bytes of the payload have arrived. Return the number received."""
    at = 0
    while at < upto:
        frame = unpack(await call.read())
        at = frame.offset + len(frame.body) if frame.kind is Kind.CHUNK else at
    return at


async def begin(victim: Victim, caller: HostileCaller, token: bytes, upto: int = 1_000_000) -> int:
    """Start a swap, read `upto` bytes of the payload, and disconnect. Return the number received."""
    async with stream(caller, token) as call:
        got = await taken(call, upto)
    await victim.until(lambda: all(slot.serving is None for slot in victim.slots.values()))
    return got


@attack
async def test_who_tells_the_truth_gets_the_rest(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    ours, writer = victim.swap(caller), PayloadWriter()
    got = await begin(victim, caller, token)
    assert not ours.done()
    async with stream(caller, token, got) as call:
        theirs = pb.SwapOpen.FromString(unpack(await call.read()).body)
        assert (theirs.swap, theirs.have) == (NUMBER, 0)
        assert unpack(await call.read()).offset == got
        for frame in (writer.chunk(THEIRS), writer.end()):
            await call.write(frame)
        await taken(call, len(OURS))
        assert unpack(await call.read()).body == _digest(OURS)
        parting = pb.SwapOpen(swap=NUMBER, have=len(OURS))
        await call.write(pack(Kind.OPEN, 0, parting.SerializeToString()))
        assert (await ours).sent_all


@pytest.mark.parametrize("have", [len(OURS) + 1, 2**32, 2**63, 2**64 - 1, len(OURS)])
def test_who_has_more_than_was_sent_is_a_liar(have: int) -> None:
    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller)
        await begin(victim, caller, token)
        async with stream(caller, token, have) as call:
            assert (await ended(call)).code == "bad_payload:have"
        with pytest.raises(BadPayload) as caught:
            await ours
        assert caught.value.code == "have"
        assert victim.slots == {}

    attempt()


@pytest.mark.parametrize("have", [1, len(OURS), 2**63, 2**64 - 1])
def test_there_is_nothing_to_go_on_with_in_the_beginning(have: int) -> None:
    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller, 1.0)
        async with stream(caller, token, have) as call:
            assert (await ended(call)).code == "gone"
        with pytest.raises(PartnerLost):
            await ours
        assert victim.transport.bytes_sent == 0

    attempt()


@attack
async def test_who_has_less_than_it_had_is_sent_nothing_more(
    victim: Victim, caller: HostileCaller, token: bytes
) -> None:
    ours = victim.swap(caller)
    got = await begin(victim, caller, token)
    async with stream(caller, token, got) as call:
        await call.read()
    await victim.until(lambda: all(slot.serving is None for slot in victim.slots.values()))
    sent = victim.transport.bytes_sent
    async with stream(caller, token, got - 1) as call:
        assert (await ended(call)).code == "gone"
    with pytest.raises(PartnerLost):
        await ours
    assert victim.transport.bytes_sent == sent


@attack
async def test_far_less_than_was_sent_is_not_sent_again(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    ours = victim.swap(caller)
    assert await begin(victim, caller, token, REWIND + 2_000_000) > REWIND + 1_000_000
    sent = victim.transport.bytes_sent
    async with stream(caller, token, 0) as call:
        assert (await ended(call)).code == "gone"
    with pytest.raises(PartnerLost):
        await ours
    assert victim.transport.bytes_sent == sent


@pytest.mark.parametrize("number", [0, NUMBER + 1, 2**64 - 1])
def test_another_number_is_another_swap(number: int) -> None:
    """A partner that restarted uses a new swap number, so no fault is recorded against it."""

    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller)
        await begin(victim, caller, token)
        async with stream(caller, token, 0, number) as call:
            assert (await ended(call)).code == "gone"
        with pytest.raises(PartnerLost):
            await ours

    attempt()


@attack
async def test_nobody_else_can_go_on_with_it(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    ours = victim.swap(caller)
    got = await begin(victim, caller, token)
    async with victim.caller() as other:
        elsewhere = await other.hello()
        async with stream(other, elsewhere, got) as call:
            assert (await ended(call)).code == "gone"
        async with stream(other, elsewhere, 0) as call:
            await victim.until(lambda: len(victim.slots) == 2)
            assert not ours.done()
    async with stream(caller, token, got) as call:
        await call.read()
        assert unpack(await call.read()).offset == got
    ours.cancel()
    await asyncio.wait({ours})


@attack
async def test_who_calls_again_and_again_holds_one_place_and_is_left(
    victim: Victim, caller: HostileCaller, token: bytes
) -> None:
    """Each call is made while the previous one is open."""
    victim.transport._caps.up.rate = 1e5  # little is on its way before the next call
    ours, calls, most = victim.swap(caller), list[Any](), 0
    limits = victim.transport._service.admission.limits
    for number in range(MOST_STREAMS + 1):
        calls.append(caller.open("Swap", token))
        await calls[-1].write(opening())
        if number < MOST_STREAMS:
            assert unpack(await calls[-1].read()).kind is Kind.OPEN
            most = max(most, limits._calling.total())
            assert len(victim.slots) == 1
            assert sum(slot.serving is not None for slot in victim.slots.values()) == 1
    assert most <= 2 * 3, "this call, and the last while it ends; each counts for the peer and for its address"
    assert (await ended(calls[-1])).code == "gone"
    for call in calls:
        call.cancel()
    with pytest.raises(PartnerLost):
        await ours
    assert victim.transport.bytes_sent <= MOST_STREAMS * REWIND
    await victim.until(lambda: not limits._calling)


def _digest(data: bytes) -> bytes:
    writer = PayloadWriter()
    writer.skip(data)
    return unpack(writer.end()).body
