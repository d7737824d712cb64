"""The bandwidth cap of a relay, with control traffic before bulk.

Each relayed byte is received once and sent once, so it also counts against the volunteer's own caps and daily quota. A
control circuit has priority as long as it carries little: while it sends, all bulk circuits together, however many they
are, get one chunk for each of its chunks. The relay cannot see what a circuit carries, so a control circuit that
carries much loses the priority. Only one circuit at a time per caller's address block waits for bandwidth, so that a
caller gains nothing by opening many."""

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
"""Bytes per second and burst with which a control circuit keeps its priority. A TLS handshake and a Hello take some 8
kB, an offer half of one."""
BLOCK = 2**18
"""Bytes claimed from the daily quota at a time."""
LEAST_RATE = 64_000.0
"""Smallest default cap, in bytes per second."""
UNCAPPED_RATE = 1_000_000.0
"""Default cap in bytes per second when the volunteer has not capped uploads."""
SHARE = 0.2
"""Default share of the upload cap for relaying."""


def default_rate(max_upload: float | None) -> float:
    """Return the default cap of a relay in bytes per second. `max_upload`: the volunteer's upload cap; None: none."""
    return UNCAPPED_RATE if max_upload is None else max(LEAST_RATE, SHARE * max_upload)


class RelayThrottle:
    """The cap that all circuits of one relay share. `rate`: bytes per second."""

    def __init__(self, rate: float, caps: Caps, now: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.chunk = chunk_size(rate, CHUNK)
        """Most bytes forwarded at a time; small, so that the cap holds over any two seconds."""
        self.passed = 0
        """Bytes forwarded since the start."""
        self._caps = caps
        self._now = now
        self._pacer = Pacer(for_bulk(rate), now)
        self._control: TokenBuckets[int] = TokenBuckets(CONTROL)
        self._claimed = 0
        self._lines: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        """(address block, with priority or not) -> lock that its circuits share."""

    def turn(self, circuit: int, block: str, *, bulk: bool) -> Turn:
        """Return the `Turn` of one circuit. `block`: the caller's address block. It raises PartnerRefused (`budget`)
        when the daily quota is used up."""
        lines = {first: self._lines.setdefault((block, first), asyncio.Lock()) for first in (True, False)}

        async def wait(nbytes: int) -> None:
            self._claim(nbytes)
            first = not bulk and self._control.take(circuit, self._now(), nbytes) == 0
            async with lines[first]:
                for pacer in (self._caps.up, self._caps.down, self._pacer):  # our cap last, so that it is met exactly
                    await (pacer.go_first(nbytes) if first else pacer.wait_turn(nbytes))
            self.passed += nbytes

        return wait

    def refusal_reason(self) -> str:
        """Return why nothing is relayed now, for a person; empty: relaying works."""
        return self._caps.meter.budget.refusal_reason(stranger=True)

    def _claim(self, nbytes: int) -> None:
        """Charge bytes to the quota, `BLOCK` bytes at a time."""
        if self._claimed < nbytes:
            with self._caps.meter.budget.claim(BLOCK, BLOCK // 2**14, giving=True, stranger=True) as sent:
                sent(BLOCK)
            self._claimed += BLOCK
        self._claimed -= nbytes


def throttle_of(rate: float | None, max_upload: float | None, caps: Caps) -> RelayThrottle | None:
    """Create the throttle of a relay; None: nothing is relayed. `rate`: as in `peer.transport.policy.RelayPolicy`."""
    wanted = default_rate(max_upload) if rate is None else rate
    return RelayThrottle(wanted, caps) if wanted > 0 else None
