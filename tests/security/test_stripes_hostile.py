"""The additional streams of a swap: what a partner is allowed to do with them, and what strangers are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from peer.errors import BadPayload, PartnerLost
from peer.protocol.wire.frames import Kind, PayloadWriter, pack, unpack
from peer.transport.wire import payload_stream as streams
from peer.transport.wire.striping import MOST_STRIPES
from peer.v1 import exchange_pb2 as pb
from tests.security.test_resuming_hostile import NUMBER, THEIRS, Victim, attack
from tests.support.hostile_client import HostileCaller, ended


def stripe(number: int, swap: int = NUMBER, round_: int = 1) -> bytes:
    """Return the first frame of an additional stream."""
    body = pb.SwapOpen(round=round_, swap=swap, stripe=number)
    return pack(Kind.OPEN, 0, body.SerializeToString())


@contextlib.asynccontextmanager
async def begun(caller: HostileCaller, token: bytes, stripes: int = MOST_STRIPES) -> AsyncIterator[Any]:
    """Start a swap up to the OPEN of both sides. The victim accepts as many streams as we announce."""
    call = caller.open("Swap", token)
    body = pb.SwapOpen(round=1, codec="bf16", nbytes=len(THEIRS), swap=NUMBER, stripes=stripes)
    await call.write(pack(Kind.OPEN, 0, body.SerializeToString()))
    theirs = pb.SwapOpen.FromString(unpack(await call.read()).body)
    assert theirs.stripes == MOST_STRIPES
    try:
        yield call
    finally:
        call.cancel()


async def opened(caller: HostileCaller, token: bytes, frame: bytes) -> Any:
    call = caller.open("Swap", token)
    await call.write(frame)
    return call


async def drained(call: Any) -> None:
    while True:
        await call.read()


async def gives_up(swap: asyncio.Task[Any]) -> None:
    swap.cancel()
    await asyncio.wait({swap})


@pytest.mark.parametrize("number", [MOST_STRIPES, MOST_STRIPES + 1, 2**32 - 1])
def test_beyond_what_was_agreed(number: int) -> None:
    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller)
        async with begun(caller, token):
            assert (await ended(await opened(caller, token, stripe(number)))).code == "gone"
            assert not ours.done()
        await gives_up(ours)

    attempt()


@pytest.mark.parametrize(("swap", "round_"), [(NUMBER + 1, 1), (0, 1), (NUMBER, 2)])
def test_of_another_swap(swap: int, round_: int) -> None:
    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller)
        async with begun(caller, token):
            assert (await ended(await opened(caller, token, stripe(1, swap, round_)))).code == "gone"
            assert not ours.done()
        await gives_up(ours)

    attempt()


@attack
async def test_without_a_swap(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    assert (await ended(await opened(caller, token, stripe(1)))).code == "gone"
    ours = victim.swap(caller)
    assert (await ended(await opened(caller, token, stripe(1)))).code == "gone", "nothing has begun"
    assert not ours.done()
    await gives_up(ours)
    assert victim.slots == {}


@attack
async def test_of_somebody_else(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    ours = victim.swap(caller)
    async with begun(caller, token), victim.caller() as other:
        elsewhere = await other.hello()
        assert (await ended(await opened(other, elsewhere, stripe(1)))).code == "gone"
        assert not ours.done()
    await gives_up(ours)


@attack
async def test_the_same_twice(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    """The caller opens the same stream twice. The second must not replace the first."""
    ours = victim.swap(caller)
    async with begun(caller, token) as call:
        first = await opened(caller, token, stripe(1))
        (slot,) = victim.slots.values()
        await victim.until(lambda: slot.stripes.count == 2)
        assert (await ended(await opened(caller, token, stripe(1)))).code == "gone"
        writer = PayloadWriter()
        await call.write(pack(Kind.STRIPES, 2, b""))
        await call.write(writer.chunk(THEIRS[:1000]))
        await first.write(writer.chunk(THEIRS[1000:]))
        await victim.until(lambda: slot.begun.progress.reader.received == len(THEIRS))
        first.cancel()
    await gives_up(ours)


@pytest.mark.parametrize("count", [0, 1, MOST_STRIPES + 1, 2**40])
def test_more_are_announced_than_agreed(count: int) -> None:
    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller)
        async with begun(caller, token) as call:
            await call.write(pack(Kind.STRIPES, count, b""))
            with pytest.raises(BadPayload) as caught:
                await ours
        assert caught.value.code == "stripes"
        await victim.until(lambda: not victim.slots)

    attempt()


def test_they_are_announced_and_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller announces additional streams and opens none. The first stream breaks, and the caller does not
    return."""
    monkeypatch.setattr(streams, "STALL_S", 0.3)

    @attack
    async def attempt(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        ours = victim.swap(caller, 3.0)
        async with begun(caller, token) as call:
            writer = PayloadWriter()
            await call.write(pack(Kind.STRIPES, MOST_STRIPES, b""))
            await call.write(writer.chunk(THEIRS[:1000]))
            with pytest.raises(grpc.aio.AioRpcError, match="call again"):
                await drained(call)
            assert not ours.done(), "the partner may call again"
        with pytest.raises(PartnerLost):
            await ours
        await victim.until(lambda: not victim.slots)

    attempt()


@attack
async def test_who_agreed_to_one_gets_no_more(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    ours = victim.swap(caller)
    async with begun(caller, token, stripes=0):
        assert (await ended(await opened(caller, token, stripe(1)))).code == "gone"
    await gives_up(ours)


@attack
async def test_what_came_over_them_is_gone_with_the_swap(victim: Victim, caller: HostileCaller, token: bytes) -> None:
    """After the swap no stream of it is served any more, and no place is occupied."""
    ours, calls = victim.swap(caller), list[Any]()
    async with begun(caller, token):
        for number in range(1, MOST_STRIPES):
            calls.append(await opened(caller, token, stripe(number)))
        (slot,) = victim.slots.values()
        await victim.until(lambda: slot.stripes.count == MOST_STRIPES)
        await gives_up(ours)
        for call in calls:
            await ended(call)
    limits = victim.transport._service.admission.limits
    await victim.until(lambda: not limits._calling)
    assert victim.slots == {}
