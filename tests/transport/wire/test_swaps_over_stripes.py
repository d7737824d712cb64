"""Real swaps over several streams: over links that can be cut, with a partner that accepts only one stream, and with
one that refuses more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from peer.protocol.messages import RoundKey, SwapReport
from peer.protocol.wire.frames import MAX_CHUNK
from peer.protocol.wire.payload import BytesSource
from peer.transport.server.admission import Context
from peer.transport.server.swap_rendezvous import SwapRendezvous
from peer.transport.wire import striping as stripes
from peer.transport.wire.refusals import refuse
from peer.transport.wire.resumption import TransferProgress
from peer.transport.wire.striping import MOST_STRIPES, Stripes
from tests.transport.wire.test_resumption import ONE, OTHER, End, Marked, check, cut_for, resent, scenario, swap

ON_ONE = 2
"""Connections, for control and bulk."""
UNDER_WAY = 3 * MOST_STRIPES * MAX_CHUNK
"""Upper bound in bytes, over all streams: each stream's window, the chunk being sent and the chunk being read."""
Counted = Callable[[], int]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every line as long and fast."""
    for name in ("LONG_S", "FULL", "WATCH_S", "WIDE"):
        monkeypatch.setattr(stripes, name, 0.0)
    monkeypatch.setattr(stripes, "WATCHED", 1)


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return the most streams that a side used at once."""
    counts = [0]
    write = Stripes.write

    async def counted(self: Stripes, frame: bytes) -> None:
        await write(self, frame)
        counts.append(self._out)

    monkeypatch.setattr(Stripes, "write", counted)
    return lambda: max(counts)


def sinks_of(marks: dict[int, Callable[[], None]]) -> tuple[Marked, Marked]:
    return Marked(len(OTHER), marks), Marked(len(ONE), {})


def play(test: Callable[[End, End], Awaitable[None]]) -> None:
    scenario(test)()


def test_a_swap_takes_several_connections(most: Counted) -> None:
    async def attempt(low: End, high: End) -> None:
        sinks = sinks_of({})
        check(await swap(low, high, *sinks), *sinks)
        assert high.wire.calls == ON_ONE + MOST_STRIPES - 1
        assert resent(low, ONE) < 5000, "a few headers"
        sinks = sinks_of({})
        check(await swap(low, high, *sinks), *sinks)
        assert high.wire.calls == ON_ONE + MOST_STRIPES - 1, "they are used again"

    play(attempt)
    assert most() == MOST_STRIPES


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95, 1.0])
def test_cut_in_the_middle_it_goes_on(share: float, most: Counted) -> None:
    async def attempt(low: End, high: End) -> None:
        sinks = sinks_of({int(share * len(OTHER)): cut_for(high.wire, 0.1)})
        check(await swap(low, high, *sinks), *sinks)
        assert resent(low, ONE) <= UNDER_WAY
        assert resent(high, OTHER) <= UNDER_WAY

    play(attempt)
    assert most() > 1


def test_cut_again_and_again(most: Counted) -> None:
    async def attempt(low: End, high: End) -> None:
        sinks = sinks_of({len(OTHER) * n // 5: cut_for(high.wire, 0.0) for n in range(1, 5)})
        check(await swap(low, high, *sinks), *sinks)

    play(attempt)
    assert most() > 1


@pytest.mark.parametrize("sizes", [(1000, len(OTHER)), (len(ONE), 0)])
def test_one_way_only(sizes: tuple[int, int], most: Counted) -> None:
    async def attempt(low: End, high: End) -> None:
        payloads = ONE[: sizes[0]], OTHER[: sizes[1]]
        sinks = Marked(sizes[1], {}), Marked(sizes[0], {})
        check(await swap(low, high, *sinks, payloads=payloads), *sinks, payloads=payloads)

    play(attempt)
    assert most() > 1


@pytest.mark.parametrize("who", ["the one that dials", "the other"])
def test_a_partner_that_takes_one_stream_gets_one(who: str, most: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partners of older versions accept only one stream."""
    dialling = TransferProgress.dialling

    def narrow(nbytes: int) -> TransferProgress:
        progress = dialling(nbytes)
        progress.stripes = 0
        return progress

    if who == "the one that dials":
        monkeypatch.setattr(TransferProgress, "dialling", narrow)
    else:
        agree = Stripes.agree
        monkeypatch.setattr(Stripes, "agree", lambda self, theirs: agree(self, 0))

    async def attempt(low: End, high: End) -> None:
        sinks = sinks_of({})
        check(await swap(low, high, *sinks), *sinks)
        assert high.wire.calls == ON_ONE

    play(attempt)
    assert most() == 1


def test_who_refuses_more_streams_gets_everything_over_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no(self: SwapRendezvous, caller: object, theirs: object, key: object, context: Context) -> None:
        await refuse(context, "busy", "too many of your calls are under way")

    monkeypatch.setattr(SwapRendezvous, "_carry", no)

    async def attempt(low: End, high: End) -> None:
        sinks = sinks_of({})
        check(await swap(low, high, *sinks), *sinks)
        assert high.wire.calls > ON_ONE + 1, "it was tried, and begun again"
        assert resent(low, ONE) <= UNDER_WAY

    play(attempt)


def test_swaps_side_by_side_have_streams_of_their_own(most: Counted) -> None:
    async def attempt(low: End, high: End) -> None:
        async def one(number: int) -> None:
            key, (there, back) = RoundKey(number, 0), sinks_of({})
            reports = await asyncio.gather(
                low.transport.swap(high.record, key, BytesSource(ONE), there, 20.0, dial=True),
                high.transport.swap(replace(low.record), key, BytesSource(OTHER), back, 20.0, dial=False),
            )
            assert all(isinstance(report, SwapReport) and report.sent_all for report in reports)
            assert bytes(there.data) == OTHER
            assert bytes(back.data) == ONE

        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(one(number))

    play(attempt)
    assert most() == MOST_STRIPES
