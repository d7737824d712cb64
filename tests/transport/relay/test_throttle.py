"""The cap of a relay, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

from peer.errors import PartnerRefused
from peer.lab.sim.virtual_clock import run_virtual
from peer.transport.relay.pipe import CHUNK
from peer.transport.relay.throttle import (
    BLOCK,
    CONTROL,
    LEAST_RATE,
    UNCAPPED_RATE,
    RelayThrottle,
    default_rate,
    throttle_of,
)
from peer.transport.wire.pacing import Pacer, for_bulk
from peer.transport.wire.payload_stream import Caps, Meter, NoBudget

WINDOW_S = 2.0
HANDSHAKE = 8_000
"""Bytes of a control circuit's beginning, each way together."""
UNCAPPED = Caps(Pacer(None), Pacer(None), Meter())


class Relay:
    """A throttle, and the (time, bytes) that passed it."""

    def __init__(self, rate: float, caps: Caps = UNCAPPED) -> None:
        self.now = asyncio.get_running_loop().time
        self.throttle = RelayThrottle(rate, caps, self.now)
        self.passed: list[tuple[float, int, bool]] = []
        self._number = 0

    @asynccontextmanager
    async def bulk(self, circuits: int, block: str = "") -> AsyncIterator[None]:
        """Run circuits that always have data to forward, each of its own block unless one is named."""
        carrying = (self.carry(10**12, bulk=True, block=block) for _ in range(circuits))
        tasks = [asyncio.create_task(carry) for carry in carrying]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def carry(self, total: int, *, bulk: bool, block: str = "") -> float:
        """Forward `nbytes` over one circuit. Return the seconds it took."""
        self._number += 1
        turn = self.throttle.turn(self._number, block or f"block {self._number}", bulk=bulk)
        began = self.now()
        while total > 0:
            size = min(self.throttle.chunk, total)
            await turn(size)
            self.passed.append((self.now(), size, bulk))
            total -= size
        return self.now() - began

    def fullest(self) -> int:
        """Return the most bytes in any window."""
        most = inside = first = 0
        for at, size, _ in self.passed:
            inside += size
            while self.passed[first][0] <= at - WINDOW_S:
                inside -= self.passed[first][1]
                first += 1
            most = max(most, inside)
        return most


@pytest.mark.parametrize("rate", [LEAST_RATE, 128e3, 1e6, 2.5e7])
@pytest.mark.parametrize("circuits", [1, 20])
def test_any_two_seconds_keep_to_the_cap_with_control_beside(rate: float, circuits: int) -> None:
    async def main() -> None:
        relay = Relay(rate)
        async with relay.bulk(circuits):
            for _ in range(8):  # eight peers greet at once, again and again
                greeting = [relay.carry(HANDSHAKE, bulk=False) for _ in range(8)]
                await asyncio.gather(*greeting, asyncio.sleep(1.5))
        assert relay.fullest() <= 1.02 * rate * WINDOW_S
        seconds = relay.passed[-1][0] - relay.passed[0][0]
        assert sum(size for _, size, _ in relay.passed) >= 0.95 * rate * seconds, "little of the cap is lost"

    run_virtual(main())


def test_control_goes_first_although_bulk_takes_the_whole_cap() -> None:
    async def main() -> None:
        relay = Relay(LEAST_RATE)
        async with relay.bulk(40):
            await asyncio.sleep(10.0)  # virtual
            took = await relay.carry(HANDSHAKE, bulk=False)
            own = HANDSHAKE / LEAST_RATE
            chunk_s = relay.throttle.chunk / LEAST_RATE
            assert own <= took <= 2 * own + 3 * chunk_s, "all bulk together passed a chunk for each of its own"

    run_virtual(main())


def test_a_control_circuit_that_carries_much_waits_with_bulk() -> None:
    async def main() -> None:
        relay, much = Relay(LEAST_RATE), 3 * int(CONTROL.burst)
        async with relay.bulk(9):
            took = await relay.carry(much, bulk=False)
        first = CONTROL.burst / LEAST_RATE
        assert took >= first + (much - CONTROL.burst - took * CONTROL.per_s) / (LEAST_RATE / 10)

    run_virtual(main())


def test_one_address_with_many_circuits_gets_no_more_than_one_with_a_single_one() -> None:
    async def main() -> None:
        relay = Relay(1e6)
        async with relay.bulk(40, "crowd"):
            took = await relay.carry(1_000_000, bulk=True)
            assert took == pytest.approx(2 * 1.0 / 0.985, rel=0.1)
            control = [relay.carry(10**9, bulk=False, block="crowd") for _ in range(40)]
            flood = [asyncio.create_task(one) for one in control]
            took = await relay.carry(HANDSHAKE, bulk=False)
            assert took <= 4 * HANDSHAKE / 1e6 + 0.1
            for task in flood:
                task.cancel()
        assert len(relay.throttle._lines) <= 4, "what is over is forgotten"

    run_virtual(main())


def test_circuits_share_the_cap_equally() -> None:
    async def main() -> None:
        relay = Relay(1e6)
        times = await asyncio.gather(*(relay.carry(2_000_000, bulk=True) for _ in range(5)))
        assert min(times) > 0.95 * max(times)

    run_virtual(main())


def test_what_is_relayed_counts_against_the_volunteers_own_caps() -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time
        cap = 100e3
        caps = Caps(Pacer(for_bulk(cap), now), Pacer(None), Meter())
        relay = Relay(1e6, caps)
        own = 0

        async def exchange() -> None:
            nonlocal own
            while True:
                await caps.up.wait_turn(1000)
                own += 1000

        exchanging = asyncio.create_task(exchange())
        async with relay.bulk(3):
            await asyncio.gather(*(relay.carry(HANDSHAKE, bulk=False) for _ in range(3)), asyncio.sleep(20.0))
        exchanging.cancel()
        total = own + sum(size for _, size, _ in relay.passed)
        assert 0.97 * cap * 20 <= total <= 1.01 * cap * 20

    run_virtual(main())


class Quota(NoBudget):
    """A daily upload quota."""

    def __init__(self, left: int) -> None:
        self.left = left

    def refusal_reason(self, *, stranger: bool = False) -> str:
        assert stranger, "it brings nothing back"
        return "" if self.left > 0 else "the quota of the day is used up"

    @contextmanager
    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> Iterator[Callable[[int], None]]:
        assert giving
        assert stranger
        if payload > self.left:
            raise PartnerRefused("budget", "the quota of the day is used up")

        def sent(nbytes: int) -> None:
            self.left -= nbytes

        yield sent


@pytest.mark.parametrize("bulk", [True, False])
def test_the_quota_of_the_day_ends_it(bulk: bool) -> None:
    async def main() -> None:
        quota = Quota(3 * BLOCK + BLOCK // 2)
        relay = Relay(1e6, replace(UNCAPPED, meter=Meter(budget=quota)))
        assert relay.throttle.refusal_reason() == ""
        with pytest.raises(PartnerRefused, match="quota"):
            await relay.carry(10 * BLOCK, bulk=bulk)
        assert 3 * BLOCK - CHUNK <= relay.throttle.passed <= 3 * BLOCK
        quota.left = 0
        assert "quota" in relay.throttle.refusal_reason()

    run_virtual(main())


@pytest.mark.parametrize(
    ("wanted", "upload", "rate"),
    [
        (None, None, UNCAPPED_RATE),
        (None, 1.25e6, 0.25e6),
        (None, 10e3, LEAST_RATE),
        (500e3, 1.25e6, 500e3),
        (500e3, None, 500e3),
    ],
)
def test_the_cap_is_a_share_of_the_upload_cap_unless_the_volunteer_says_otherwise(
    wanted: float | None, upload: float | None, rate: float
) -> None:
    made = throttle_of(wanted, upload, UNCAPPED)
    assert made is not None
    assert made.rate == rate
    assert wanted is not None or default_rate(upload) == rate


def test_a_volunteer_may_relay_nothing() -> None:
    assert throttle_of(0.0, 1.25e6, UNCAPPED) is None
