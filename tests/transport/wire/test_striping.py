"""Swaps over several streams: the order of frames, when streams are added, and failures of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from peer.errors import BadPayload, PartnerLost
from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.wire.frames import USUAL_CHUNK, Kind, PayloadReader, PayloadWriter, kind_of, pack
from peer.transport.wire import striping as stripes
from peer.transport.wire.striping import MOST_STRIPES, WATCH_S, Stripe, Stripes

SIZE = USUAL_CHUNK
LONG_S = 0.1


@dataclass
class Pipe:
    """One direction of a stream. It accepts a frame every `takes_s` seconds and delivers it `after_s` later."""

    takes_s: float = 0.0
    after_s: float = 0.0
    sent: list[bytes] = field(default_factory=list)
    queue: asyncio.Queue[tuple[float, bytes | None]] = field(default_factory=asyncio.Queue)
    broken: bool = False

    async def write(self, frame: bytes) -> None:
        await asyncio.sleep(self.takes_s)
        if self.broken:
            raise PartnerLost("broken")
        self.sent.append(frame)
        self.queue.put_nowait((asyncio.get_running_loop().time() + self.after_s, frame))

    async def read(self) -> bytes | None:
        at, frame = await self.queue.get()
        await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
        if self.broken:
            raise PartnerLost("broken")
        return frame

    def breaks(self) -> None:
        self.broken = True
        self.queue.put_nowait((0.0, None))


@dataclass
class Way:
    """The streams between the dialling side and the other."""

    takes_s: float = 0.0
    after_s: float = 0.0
    there: list[Pipe] = field(default_factory=list)
    back: list[Pipe] = field(default_factory=list)
    carried: list[asyncio.Task[None]] = field(default_factory=list)

    def stream(self) -> tuple[Pipe, Pipe]:
        self.there.append(Pipe(self.takes_s, self.after_s))
        self.back.append(Pipe(self.takes_s, self.after_s))
        return self.there[-1], self.back[-1]

    def sides(self, round_trip_s: float = LONG_S, usual: int = 1) -> tuple[Stripes, Stripes]:
        there, back = self.stream()
        other = Stripes(there.read, back.write)

        def open_stripe(number: int) -> tuple[Stripe, bytes]:
            there, back = self.stream()

            async def carry() -> None:
                assert await there.read() == b"%d" % number
                await other.carry(number, Stripe(there.read, back.write))

            self.carried.append(asyncio.get_running_loop().create_task(carry()))
            return Stripe(back.read, there.write), b"%d" % number

        ours = Stripes(back.read, there.write, open_stripe, round_trip_s, usual)
        for side in (other, ours):
            side.agree(MOST_STRIPES)
        return ours, other


async def send(side: Stripes, chunks: int) -> None:
    writer = PayloadWriter()
    for number in range(chunks):
        await side.write(writer.chunk(bytes([number % 251]) * SIZE))
    await side.write(writer.end())


async def receive(side: Stripes, chunks: int) -> None:
    """Check that every chunk arrives once, in order, with the right digest."""
    reader = PayloadReader(chunks * SIZE)
    while not reader.over:
        raw = await side.read()
        assert raw is not None
        reader.take(raw)
    assert reader.complete


def swapped(way: Way, chunks: int, round_trip_s: float = LONG_S, usual: int = 1) -> float:
    """Swap in both directions. Return the virtual seconds it took."""

    async def main() -> float:
        ours, other = way.sides(round_trip_s, usual)
        async with asyncio.TaskGroup() as group:
            for side in (ours, other):
                group.create_task(send(side, chunks))
                group.create_task(receive(side, chunks))
        took = asyncio.get_running_loop().time()
        for side in (ours, other):
            await side.close()
        await asyncio.gather(*way.carried)
        return took

    return run_virtual(main())


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes.time, "monotonic", lambda: asyncio.get_running_loop().time())


def test_a_long_and_fast_way_gets_more_streams_and_is_faster() -> None:
    """Each stream transfers one chunk per round trip: 3.3 MB/s."""
    way = Way(LONG_S, LONG_S / 2)
    took = swapped(way, 100)
    assert len(way.there) == MOST_STRIPES
    for pipes in (way.there, way.back):
        kinds = [kind_of(frame) for pipe in pipes for frame in pipe.sent if len(frame) >= 24]
        assert kinds.count(Kind.STRIPES) >= 1
        assert kinds.count(Kind.CHUNK) == 100
        assert all(len(pipe.sent) >= 15 for pipe in pipes), "each carried its part"
    assert took < 0.5 * 100 * LONG_S


@pytest.mark.parametrize(
    ("takes_s", "round_trip_s"),
    [(0.01, 0.01), (3.0, 0.2), (LONG_S, 0.0)],
    ids=["short", "slow", "not known"],
)
def test_others_stay_on_one(takes_s: float, round_trip_s: float) -> None:
    way = Way(takes_s)
    swapped(way, 40, round_trip_s)
    assert len(way.there) == 1
    assert not any(kind_of(frame) == Kind.STRIPES for pipe in (*way.there, *way.back) for frame in pipe.sent)


def test_what_the_last_swap_took_is_there_from_the_beginning() -> None:
    again = Way(LONG_S, LONG_S / 2)
    first = swapped(Way(LONG_S, LONG_S / 2), 40)
    assert swapped(again, 40, usual=MOST_STRIPES) < first


def test_a_slow_direction_stays_on_one_beside_a_fast_one() -> None:
    async def main() -> tuple[int, int]:
        way = Way(LONG_S, LONG_S / 2)
        ours, other = way.sides(usual=MOST_STRIPES)
        for pipe in way.back:
            pipe.takes_s = 0.8
        async with asyncio.TaskGroup() as group:
            for side, chunks in ((ours, 60), (other, 10)):
                group.create_task(send(side, chunks))
                group.create_task(receive(other if side is ours else ours, chunks))
        for side in (ours, other):
            await side.close()
        return sum(bool(p.sent) for p in way.there), sum(bool(p.sent) for p in way.back)

    assert run_virtual(main()) == (MOST_STRIPES, 1)


def test_one_that_takes_a_single_stream_gets_one() -> None:
    async def main() -> int:
        way = Way(LONG_S, LONG_S / 2)
        ours, other = way.sides(usual=MOST_STRIPES)
        ours.agree(0)
        async with asyncio.TaskGroup() as group:
            group.create_task(send(ours, 40))
            group.create_task(receive(other, 40))
        for side in (ours, other):
            await side.close()
        return ours.count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stripes, "agree", _agree_once(Stripes.agree))
        assert run_virtual(main()) == 1


def _agree_once(agree: Callable[[Stripes, int], None]) -> Callable[[Stripes, int], None]:
    """Use the number of streams that the test sets, instead of the harness's own."""

    def first(self: Stripes, theirs: int) -> None:
        agree(self, 0 if self._open_stripe is not None else theirs)

    return first


@pytest.mark.parametrize("count", [0, 1, MOST_STRIPES + 1, 2**63])
def test_more_streams_than_agreed_are_refused(count: int) -> None:
    async def main() -> None:
        way = Way()
        _, other = way.sides()
        await way.there[0].write(pack(Kind.STRIPES, count, b""))
        with pytest.raises(BadPayload) as caught:
            await other.read()
        assert caught.value.code == "stripes"

    run_virtual(main())


def test_the_side_that_dials_takes_no_more_than_it_opened() -> None:
    async def main() -> None:
        way = Way()
        ours, _ = way.sides()
        await way.back[0].write(pack(Kind.STRIPES, 2, b""))
        with pytest.raises(BadPayload):
            await ours.read()

    run_virtual(main())


def test_a_stream_that_was_announced_and_does_not_come_is_waited_for_no_longer_than_the_caller_will() -> None:
    async def main() -> None:
        way = Way()
        _, other = way.sides()
        await way.there[0].write(pack(Kind.STRIPES, 2, b""))
        first = PayloadWriter().chunk(b"x")
        await way.there[0].write(first)
        assert await other.read() == first
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await other.read()
        assert other.awaits(1)
        await other.close()

    run_virtual(main())


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_stream_that_breaks_breaks_the_swap(what: str) -> None:
    async def main() -> None:
        way = Way(LONG_S, LONG_S / 2)
        ours, other = way.sides(usual=MOST_STRIPES)
        breaking = send(ours, 100) if what == "write" else receive(other, 100)
        beside = asyncio.create_task(receive(other, 100) if what == "write" else send(ours, 100))
        asyncio.get_running_loop().call_later(2.0, way.there[2].breaks)
        with pytest.raises(PartnerLost):
            await breaking
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        for side in (ours, other):
            await side.close()

    run_virtual(main())


def test_the_last_frame_waits_for_all() -> None:
    """The last frame must not arrive before the chunks on other streams, so all streams are flushed after it."""

    async def main() -> None:
        way = Way(LONG_S, 0.0)
        ours, other = way.sides(usual=MOST_STRIPES)
        drinking = asyncio.create_task(receive(other, 60))
        await send(ours, 60)
        kinds = [kind_of(frame) for pipe in way.there for frame in pipe.sent]
        assert kinds.count(Kind.CHUNK) == 60
        await drinking
        for side in (ours, other):
            await side.close()

    run_virtual(main())


def test_what_is_carried_ends_with_the_swap_and_nothing_is_left_running() -> None:
    async def main() -> None:
        way = Way(LONG_S, LONG_S / 2)
        ours, other = way.sides(usual=MOST_STRIPES)
        sending = asyncio.create_task(send(ours, 100))
        receiving = asyncio.create_task(receive(other, 100))
        await asyncio.sleep(3 * WATCH_S)
        assert len(way.carried) == MOST_STRIPES - 1
        assert not any(task.done() for task in way.carried)
        for task in (sending, receiving):
            task.cancel()
        await asyncio.wait({sending, receiving})
        for side in (ours, other):
            await side.close()
        await asyncio.gather(*way.carried)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    run_virtual(main())
