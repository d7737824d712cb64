"""Transfers over a real link that is cut in the middle resume where they were."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from blake3 import blake3

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, PartnerLost
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import (
    Answer,
    PeerId,
    PeerRecord,
    Piece,
    RoundKey,
    RunId,
    StateIndex,
    Status,
    SwapReport,
    Verdict,
)
from peer.protocol.wire.frames import HEADER, MAX_CHUNK
from peer.protocol.wire.payload import BufferSink, BytesSource, CountedSink
from peer.transport import grpc_transport as transport
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.server import service
from peer.transport.wire import payload_stream as stream
from peer.transport.wire import resumption as resuming
from peer.transport.wire import striping as stripes
from peer.transport.wire.payload_stream import Caps, NoBudget, SwapTerms, UploadBudget
from peer.transport.wire.resumption import TransferProgress
from tests.support.cutting_relay import Wire, before

RUN, KEY = RunId(b"B" * 32), RoundKey(1, 0)
ONE, OTHER = bytes(range(251)) * 32_000, bytes(range(239)) * 33_000
"""8 MB each way."""
TWO_CHUNKS = 2 * MAX_CHUNK


@pytest.fixture(autouse=True)
def one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one stream, even where a slow Hello on a busy machine would suggest several
    (`test_swaps_over_stripes.py`)."""
    monkeypatch.setattr(stripes, "LONG_S", 3600.0)


class Willing(RequestHandler):
    """A handler that accepts every swap and has a state."""

    piece = ONE

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_piece(self, snapshot: str, piece: int) -> memoryview:
        return memoryview(self.piece)


@dataclass
class End:
    identity: Identity
    port: int
    transport: GrpcTransport
    record: PeerRecord
    owner: Willing
    wire: Wire
    """The breakable link over which others call it."""


@contextlib.asynccontextmanager
async def two(*budgets: UploadBudget) -> AsyncIterator[tuple[End, End]]:
    now, ends = RunClock().now, list[End]()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(2):
            identity, owner, wire = Identity.generate(), Willing(), Wire()
            policy = TransportPolicy(quota=budgets[number]) if budgets else TransportPolicy()
            transport = GrpcTransport(identity, RUN, owner, now, policy)
            transport.begin_run(RunTerms(b"L" * 32, 2**24))
            stack.push_async_callback(transport.close)
            port = await transport.start("127.0.0.1", 0)
            where = (await stack.enter_async_context(before(f"127.0.0.1:{port}", wire)),)
            me = PeerId(identity.peer_id)
            record = PeerRecord(me, RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, now(), now() + 60)
            ends.append(End(identity, port, transport, record, owner, wire))
        async with asyncio.timeout(150):
            yield ends[0], ends[1]


class Marked(BufferSink):
    """A sink that runs a function, once, when a number of bytes has arrived. A repeated byte is an error."""

    def __init__(self, nbytes: int, marks: dict[int, Callable[[], None]]) -> None:
        super().__init__(nbytes)
        self._marks = sorted(marks.items(), key=lambda mark: mark[0])
        self.upto = 0

    def write(self, offset: int, data: bytes) -> None:
        assert offset == self.upto, "every byte once, in order"
        super().write(offset, data)
        self.upto += len(data)
        while self._marks and self.upto >= self._marks[0][0]:
            self._marks.pop(0)[1]()


def cut_for(wire: Wire, seconds: float, how: str = "sever") -> Callable[[], None]:
    def cut() -> None:
        getattr(wire, how)()
        asyncio.get_running_loop().call_later(seconds, wire.mend)

    return cut


def swaps(
    dialler: End, other: End, *sinks: BufferSink, payloads: tuple[bytes, bytes] = (ONE, OTHER), timeout_s: float = 20.0
) -> tuple[Coroutine[Any, Any, SwapReport], Coroutine[Any, Any, SwapReport]]:
    one, two = (BytesSource(payload) for payload in payloads)
    return (
        dialler.transport.swap(other.record, KEY, one, sinks[0], timeout_s, dial=True),
        other.transport.swap(dialler.record, KEY, two, sinks[1], timeout_s, dial=False),
    )


async def swap(dialler: End, other: End, *sinks: BufferSink, **more: Any) -> list[Any]:
    """Swap on both sides. Return the results of the dialling side and of the other: a report or an error."""
    return list(await asyncio.gather(*swaps(dialler, other, *sinks, **more), return_exceptions=True))


def resent(end: End, payload: bytes) -> int:
    """Return the bytes of chunks that were sent more than once, with a few headers."""
    return end.transport.bytes_sent - len(payload) - len(payload) // MAX_CHUNK * HEADER.size


def check(reports: list[Any], *sinks: BufferSink, payloads: tuple[bytes, bytes] = (ONE, OTHER)) -> None:
    for report in reports:
        assert isinstance(report, SwapReport), report
        assert report.sent_all
    assert bytes(sinks[0].data) == payloads[1]
    assert bytes(sinks[1].data) == payloads[0]


def scenario(test: Callable[[End, End], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            async with two() as (low, high):
                await test(low, high)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


# -- swaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["the one that dials", "the other"])
@pytest.mark.parametrize(("share", "away_s"), [(0.0, 0.3), (0.1, 0.0), (0.5, 0.5), (0.99, 0.0), (1.0, 0.3)])
def test_a_swap_goes_on_where_it_was(share: float, away_s: float, who: str) -> None:
    @scenario
    async def attempt(low: End, high: End) -> None:
        marks = {max(1, int(share * len(ONE))): cut_for(high.wire, away_s)}
        ours = who == "the one that dials"
        sinks = Marked(len(OTHER), marks if ours else {}), Marked(len(ONE), {} if ours else marks)
        check(await swap(low, high, *sinks), *sinks)
        assert resent(low, ONE) <= TWO_CHUNKS
        assert resent(high, OTHER) <= TWO_CHUNKS
        assert high.wire.there < 1.01 * len(ONE) + TWO_CHUNKS + 2**16
        assert high.wire.back < 1.01 * len(OTHER) + TWO_CHUNKS + 2**16

    attempt()


def test_a_link_cut_in_the_middle_of_a_chunk() -> None:
    """Wherever the link is cut, less than two chunks are sent again in each direction."""

    async def line(cut_at: int | None) -> Wire:
        async with two() as (low, high):
            if cut_at is not None:
                high.wire.when(cut_at, cut_for(high.wire, 0.0))
            sinks = Marked(len(OTHER), {}), Marked(len(ONE), {})
            check(await swap(low, high, *sinks), *sinks)
            assert (high.wire.calls > 2) == (cut_at is not None)
            return high.wire

    whole = asyncio.run(line(None))
    for cut_at in range(1_000_000, 7_000_000, 947_000):
        cut = asyncio.run(line(cut_at))
        assert 0 < cut.there - whole.there < TWO_CHUNKS
        assert 0 < cut.back - whole.back < TWO_CHUNKS


@scenario
async def test_a_link_that_breaks_again_and_again(low: End, high: End) -> None:
    times = 6
    marks = {len(OTHER) * n // times: cut_for(high.wire, 0.1 * (n % 3)) for n in range(1, times)}
    sinks = Marked(len(OTHER), marks), Marked(len(ONE), {})
    check(await swap(low, high, *sinks), *sinks)
    assert high.wire.calls >= 2 * times
    assert resent(low, ONE) <= (times - 1) * TWO_CHUNKS
    assert resent(high, OTHER) <= (times - 1) * TWO_CHUNKS


def test_a_link_that_says_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays open but transfers nothing, so the swap must continue over a new one."""
    monkeypatch.setattr(stream, "STALL_S", 0.3)

    @scenario
    async def attempt(low: End, high: End) -> None:
        sinks = Marked(len(OTHER), {len(OTHER) // 2: high.wire.forget}), Marked(len(ONE), {})
        check(await swap(low, high, *sinks), *sinks)
        assert high.wire.calls > 2, "it was given up"
        assert resent(low, ONE) <= TWO_CHUNKS
        assert resent(high, OTHER) <= TWO_CHUNKS

    attempt()


@pytest.mark.parametrize("sizes", [(1000, 7_000_000), (7_000_000, 1000), (0, 3_000_000), (3_000_000, 0)])
def test_who_has_everything_serves_the_one_that_has_not(sizes: tuple[int, int]) -> None:
    @scenario
    async def attempt(low: End, high: End) -> None:
        payloads = ONE[: sizes[0]], OTHER[: sizes[1]]
        cut = {4 * max(sizes) // 5: cut_for(high.wire, 0.3)}
        low_is_behind = sizes[1] > sizes[0]
        sinks = Marked(sizes[1], cut if low_is_behind else {}), Marked(sizes[0], {} if low_is_behind else cut)
        check(await swap(low, high, *sinks, payloads=payloads), *sinks, payloads=payloads)
        assert high.wire.calls > 2, "it was cut"
        assert resent(low, payloads[0]) <= TWO_CHUNKS
        assert resent(high, payloads[1]) <= TWO_CHUNKS

    attempt()


@scenario
async def test_who_has_sent_everything_stays_until_it_has_come(low: End, high: End) -> None:
    """The link breaks when one side has sent everything, but part of it is still in buffers."""

    def hold() -> None:
        high.wire.hold()
        asyncio.get_running_loop().call_later(0.3, high.wire.sever)
        asyncio.get_running_loop().call_later(0.4, high.wire.mend)

    payloads = ONE[:1000], OTHER[:100_000]
    sinks = Marked(100_000, {}), Marked(1000, {})
    high.wire.when(20_000, hold)
    check(await swap(low, high, *sinks, payloads=payloads), *sinks, payloads=payloads)
    assert high.wire.calls > 2, "it was cut"


@scenario
async def test_a_link_that_does_not_come_back(low: End, high: End) -> None:
    sinks = Marked(len(OTHER), {len(OTHER) // 2: high.wire.sever}), Marked(len(ONE), {})
    began = asyncio.get_running_loop().time()
    for error in await swap(low, high, *sinks, timeout_s=1.5):
        assert isinstance(error, PartnerLost), error
    assert asyncio.get_running_loop().time() - began < 3.0


def test_who_has_everything_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that has received everything waits only `LINGER_S` for the other one, and its received values stay
    valid."""
    monkeypatch.setattr(resuming, "LINGER_S", 0.5)

    async def attempt(finished: int) -> None:
        async with two() as ends:
            low, high = ends
            payloads = (ONE[:1000], OTHER) if finished else (ONE, OTHER[:1000])
            sinks = Marked(len(payloads[1]), {}), Marked(len(payloads[0]), {})
            sinks[1 - finished]._marks = [(4_000_000, high.wire.sever)]
            began = asyncio.get_running_loop().time()
            reports = [asyncio.create_task(one) for one in swaps(low, high, *sinks, payloads=payloads)]
            report = await reports[finished]
            assert asyncio.get_running_loop().time() - began < 6.0
            assert isinstance(report, SwapReport)
            assert not report.sent_all
            reports[1 - finished].cancel()
            await asyncio.wait(reports)

    for finished in (0, 1):
        asyncio.run(attempt(finished))


@scenario
async def test_a_partner_that_was_started_anew_is_lost(low: End, high: End) -> None:
    """The restarted partner does not know the swap and has lost what it had received."""

    async def restart() -> None:
        high.wire.sever()
        theirs.cancel()
        await high.transport.close()
        again = GrpcTransport(high.identity, RUN, high.owner, RunClock().now)
        again.begin_run(RunTerms(b"L" * 32, 2**24))
        restarted.append(again)
        await again.start("127.0.0.1", high.port)
        high.wire.mend()

    restarted, tasks = list[GrpcTransport](), list[asyncio.Task[None]]()
    marks = {len(OTHER) // 2: lambda: tasks.append(asyncio.create_task(restart()))}
    both = swaps(low, high, Marked(len(OTHER), marks), Marked(len(ONE), {}))
    began = asyncio.get_running_loop().time()
    ours, theirs = (asyncio.create_task(one) for one in both)
    with pytest.raises(PartnerLost):
        await ours
    assert asyncio.get_running_loop().time() - began < 8.0, "not its whole time"
    await asyncio.wait([theirs, *tasks])
    assert len(restarted) == 1
    await restarted[0].close()


def test_with_a_partner_that_does_not_go_on_a_break_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partners of older versions do not support resumption."""

    @scenario
    async def attempt(low: End, high: End) -> None:
        real, real_begin = SwapTerms.opening, TransferProgress.begin_stream

        def opening(terms: SwapTerms, caps: Caps, progress: TransferProgress | None = None, stripes: int = 0) -> bytes:
            if progress is not None and caps is high.transport._caps:
                progress.number = 0
                monkeypatch.setattr(
                    progress, "begin_stream", lambda number, have, due: real_begin(progress, 0, have, due)
                )
            return real(terms, caps, progress, stripes)

        monkeypatch.setattr(SwapTerms, "opening", opening)
        for dialler, other in ((low, high), (high, low)):
            sinks = Marked(len(ONE), {}), Marked(len(ONE), {})
            check(await swap(dialler, other, *sinks, payloads=(ONE, ONE)), *sinks, payloads=(ONE, ONE))
            sinks = Marked(len(ONE), {len(ONE) // 2: cut_for(other.wire, 0.0)}), Marked(len(ONE), {})
            began = asyncio.get_running_loop().time()
            for error in await swap(dialler, other, *sinks, payloads=(ONE, ONE)):
                assert type(error) is PartnerLost, error
            assert asyncio.get_running_loop().time() - began < 3.0

    attempt()


def test_what_is_sent_again_is_counted() -> None:
    claimed, told, sent = list[int](), list[int](), list[int]()

    class Counting(UploadBudget):
        def refusal_reason(self, *, stranger: bool = False) -> str:
            return ""

        @contextlib.contextmanager
        def claim(
            self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
        ) -> Iterator[Callable[[int], None]]:
            claimed.append(payload)
            yield told.append

    async def main() -> None:
        async with two(NoBudget(), Counting()) as (low, high):
            sinks = Marked(len(OTHER), {len(OTHER) // 4: cut_for(high.wire, 0.0)}), Marked(len(ONE), {})
            check(await swap(low, high, *sinks), *sinks)
            sent.append(high.transport.bytes_sent)

    asyncio.run(main())
    first, second = claimed
    assert first == len(OTHER)
    assert second <= 3 * len(OTHER) // 4
    assert len(OTHER) <= sum(told) <= len(OTHER) + TWO_CHUNKS
    assert sum(told) >= sent[0] - 1000 * HEADER.size


# -- pieces of a state -------------------------------------------------------------------------------------------------

INDEX = StateIndex("snapshot", 3, b"L" * 32, (Piece(0, 1, len(ONE), blake3(ONE).digest()),))


class Marking(CountedSink):
    """Replaces the transport's sink: runs a function at each of the given offsets."""

    marks: ClassVar[list[tuple[int, Callable[[], None]]]] = []

    def write(self, offset: int, data: bytes) -> None:
        super().write(offset, data)
        while self.marks and offset + len(data) >= self.marks[0][0]:
            self.marks.pop(0)[1]()


@pytest.mark.parametrize("times", [1, 4])
def test_a_piece_goes_on_where_it_was(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CountedSink", Marking)

    @scenario
    async def attempt(low: End, high: End) -> None:
        step = len(ONE) // (times + 1)
        Marking.marks = [(step * (n + 1), cut_for(high.wire, 0.2 * (n % 2))) for n in range(times)]
        assert await low.transport.fetch_piece(high.record, INDEX, 0, 20.0) == ONE
        assert not Marking.marks
        assert resent(high, ONE) <= times * TWO_CHUNKS

    attempt()


def test_a_donor_that_does_not_come_back_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CountedSink", Marking)
    monkeypatch.setattr(resuming, "LINGER_S", 0.7)

    @scenario
    async def attempt(low: End, high: End) -> None:
        Marking.marks = [(len(ONE) // 2, high.wire.sever)]
        began = asyncio.get_running_loop().time()
        with pytest.raises(PartnerLost):
            await low.transport.fetch_piece(high.record, INDEX, 0, 20.0)
        assert asyncio.get_running_loop().time() - began < 5.0

    attempt()


def test_a_donor_that_goes_on_with_other_bytes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CountedSink", Marking)

    @scenario
    async def attempt(low: End, high: End) -> None:
        def change() -> None:
            high.owner.piece = ONE[::-1]
            cut_for(high.wire, 0.0)()

        Marking.marks = [(len(ONE) // 2, change)]
        with pytest.raises(BadPayload):
            await low.transport.fetch_piece(high.record, INDEX, 0, 20.0)

    attempt()


def test_an_old_donor_is_left_when_its_link_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CountedSink", Marking)
    monkeypatch.setattr(service, "A_PIECE", 0)

    @scenario
    async def attempt(low: End, high: End) -> None:
        assert await low.transport.fetch_piece(high.record, INDEX, 0, 20.0) == ONE
        Marking.marks = [(len(ONE) // 2, cut_for(high.wire, 0.0))]
        with pytest.raises(PartnerLost):
            await low.transport.fetch_piece(high.record, INDEX, 0, 20.0)

    attempt()
