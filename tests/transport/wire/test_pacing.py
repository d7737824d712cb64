from __future__ import annotations

import asyncio
import random

import pytest

from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.wire.frames import MAX_CHUNK, USUAL_CHUNK
from peer.transport.wire.pacing import (
    CREDIT_S,
    FIRST_CHUNK,
    LEAST_CHUNK,
    SMALLEST_CHUNK,
    STEADY_CHUNK,
    ChunkSize,
    Pacer,
    chunk_size,
    for_bulk,
)

WINDOW_S = 2.0


def run_paced(rate: float, total: int, senders: int, late: float, seed: int) -> list[tuple[float, int]]:
    """Return (time, bytes) of every chunk, with wake-ups that are up to `late` seconds late."""
    rng, sent = random.Random(seed), []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds + rng.uniform(0, late))

        pacer, size = Pacer(rate, loop.time, sleep), chunk_size(rate)

        async def send() -> None:
            for _ in range(total // senders // size):
                await pacer.wait_turn(size)
                sent.append((loop.time(), size))

        await asyncio.gather(*(send() for _ in range(senders)))

    run_virtual(main())
    return sent


@pytest.mark.parametrize("rate", [20e3, 125e3, 1.25e6, 12.5e6])
@pytest.mark.parametrize(("senders", "late"), [(1, 0.0), (1, 0.015), (3, 0.015)])
def test_exact_over_two_seconds(rate: float, senders: int, late: float) -> None:
    sent = run_paced(rate, int(rate * 20), senders, late, seed=1)
    times = [time for time, _ in sent]
    for start in times:
        inside = sum(size for time, size in sent if start <= time < start + WINDOW_S)
        assert inside <= rate * (WINDOW_S + CREDIT_S) + chunk_size(rate)
    used = sum(size for _, size in sent) / (times[-1] - times[0])
    assert used >= 0.995 * rate


@pytest.mark.parametrize("cap", [250e3, 1.25e6, 12.5e6])
def test_payloads_never_take_more_than_the_cap_in_two_seconds(cap: float) -> None:
    sent = run_paced(for_bulk(cap) or 0.0, int(cap * 20), 2, 0.015, seed=2)
    for start, _ in sent:
        assert sum(size for time, size in sent if start <= time < start + WINDOW_S) <= cap * WINDOW_S
    assert sum(size for _, size in sent) / (sent[-1][0] - sent[0][0]) >= 0.98 * cap


def test_chunks_follow_what_the_line_bears() -> None:
    size = ChunkSize(None, MAX_CHUNK)
    assert size.next == FIRST_CHUNK, "nothing is known yet"
    for _ in range(5):
        size.took(0.01)
    assert size.next == STEADY_CHUNK, "a home's line"
    for _ in range(3):
        size.took(0.001)
    assert size.next == MAX_CHUNK, "none at all"
    size.took(0.1)
    assert size.next == STEADY_CHUNK
    for _ in range(9):
        size.took(1.0)
    assert size.next == size.least == LEAST_CHUNK
    size.took(0.3)
    assert size.next == LEAST_CHUNK, "as it should be"
    assert ChunkSize(125_000.0, MAX_CHUNK).next == ChunkSize(125_000.0, MAX_CHUNK).least == SMALLEST_CHUNK


def test_idling_saves_nothing_up() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        pacer = Pacer(1000.0, loop.time, asyncio.sleep)
        await pacer.wait_turn(100)
        await asyncio.sleep(50)
        began = loop.time()
        for _ in range(11):
            await pacer.wait_turn(100)
        return loop.time() - began

    assert run_virtual(main()) == pytest.approx(1.0, abs=0.03)


def test_without_a_cap_nothing_waits() -> None:
    async def main() -> float:
        pacer = Pacer(None)
        for _ in range(1000):
            await pacer.wait_turn(10**9)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_chunks_are_bounded_and_small_against_the_window() -> None:
    assert chunk_size(None) == USUAL_CHUNK
    assert chunk_size(None, MAX_CHUNK) == MAX_CHUNK
    assert chunk_size(1.0) == SMALLEST_CHUNK
    assert chunk_size(1e12) == USUAL_CHUNK
    assert chunk_size(1e12, MAX_CHUNK) == MAX_CHUNK
    assert chunk_size(1.25e6) == 12_500
