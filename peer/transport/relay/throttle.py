"""The cap on what a relay passes on, with control before bulk.

Each relayed byte comes in once and leaves once. So it also counts against the volunteer's own caps, and against the
quota of a day. A control circuit goes first as long as it stays small: however many circuits for bulk there are, all of
them together get a chunk for each of its own. The relay cannot see what a circuit carries, so a control circuit that
carries much waits with the others. Of the circuits that callers of one address block opened, one at a time stands in
line: who opens many gets no more than one that opens few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from peer.protocol.token_bucket import Rate, TokenBuckets
from peer.transport.relay.pipe import CHUNK, Turn
from peer.transport.wire.pacing import Pacer, chunk_size, for_bulk
from peer.transport.wire.payload_stream import Caps

CONTROL = Rate(8_000.0, 96_000.0)
"""Bytes of a control circuit: a TLS handshake and a Hello have some 8 kB, an offer half of one."""
BLOCK = 2**18
"""Bytes that are claimed of the day's quota at a time."""
LEAST_RATE = 64_000.0
"""Bytes per second of the smallest default cap."""
UNCAPPED_RATE = 1_000_000.0
"""Bytes per second of the default cap where the volunteer set no cap on uploads."""
SHARE = 0.2
"""Part of the upload cap that a relay passes on by default."""


def default_rate(max_upload: float | None) -> float:
    """Return the default cap of a relay in bytes per second. `max_upload`: the volunteer's cap; None: there is none."""
    return UNCAPPED_RATE if max_upload is None else max(LEAST_RATE, SHARE * max_upload)


class RelayThrottle:
    """The cap that all circuits of one relay share. `rate`: bytes per second."""

    def __init__(self, rate: float, caps: Caps, now: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.chunk = chunk_size(rate, CHUNK)
        """Bytes passed on at a time: few, so that any two seconds keep to the cap."""
        self.passed = 0
        """Bytes passed on since the start."""
        self._caps = caps
        self._now = now
        self._pacer = Pacer(for_bulk(rate), now)
        self._control: TokenBuckets[int] = TokenBuckets(CONTROL)
        self._claimed = 0
        self._lines: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        """By address block, and whether it goes first."""

    def turn(self, circuit: int, block: str, *, bulk: bool) -> Turn:
        """Return the wait of one circuit. `block`: its caller's. It raises PartnerRefused (`budget`) when the day's
        quota is used up."""
        lines = {first: self._lines.setdefault((block, first), asyncio.Lock()) for first in (True, False)}

        async def wait(nbytes: int) -> None:
            self._claim(nbytes)
            first = not bulk and self._control.take(circuit, self._now(), nbytes) == 0
            async with lines[first]:
                for pacer in (self._caps.up, self._caps.down, self._pacer):  # ours last, so that it is exact
                    await (pacer.go_first(nbytes) if first else pacer.wait_turn(nbytes))
            self.passed += nbytes

        return wait

    def refusal_reason(self) -> str:
        """Return why nothing is relayed now, for a person; empty: it is."""
        return self._caps.meter.budget.refusal_reason(stranger=True)

    def _claim(self, nbytes: int) -> None:
        """Count bytes against the quota, a block at a time."""
        if self._claimed < nbytes:
            with self._caps.meter.budget.claim(BLOCK, BLOCK // 2**14, giving=True, stranger=True) as sent:
                sent(BLOCK)
            self._claimed += BLOCK
        self._claimed -= nbytes


def throttle_of(rate: float | None, max_upload: float | None, caps: Caps) -> RelayThrottle | None:
    """Make the throttle of a relay; None: it relays nothing. `rate`: as `peer.transport.policy` has it."""
    wanted = default_rate(max_upload) if rate is None else rate
    return RelayThrottle(wanted, caps) if wanted > 0 else None
