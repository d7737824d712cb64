"""Access links as data, and the rate of a TCP stream over two of them.

A peer is connected by one access link with an uplink and a downlink. The net between two links is never the bottleneck.
Latency, jitter and loss of both links add up. A bulk stream over a lossy path gets at most MSS / RTT * sqrt(3/2) /
sqrt(loss), by Mathis et al. (1997). A lost small message arrives one retransmission timeout later: the round-trip time,
at least 200 ms, doubled when it is lost again (RFC 6298)."""

from __future__ import annotations

import difflib
import math
import random
from dataclasses import dataclass, replace

from peer.errors import UsageError
from peer.protocol.wire.frames import HEADER
from peer.transport.wire.pacing import BULK_SHARE, chunk_size

MBIT = 125_000.0
"""One megabit per second, in bytes per second."""
MSS = 1448
"""Payload bytes of a TCP segment, with an MTU of 1500 bytes and TCP timestamps."""
LEAST_RTO_S = 0.2
TCP_IP = 52
"""Bytes of the IP and TCP headers of a segment."""
TLS_RECORD, TLS_AND_HTTP2 = 16384, 22 + 9
"""Bytes of a full TLS record, and the bytes that TLS and HTTP/2 add to it."""
CHUNK, CHUNK_FRAME = 2**17, 24 + 5
"""Bytes of a payload chunk without a volunteer's cap, and of its header with that of gRPC."""


@dataclass(frozen=True, slots=True)
class Link:
    """One peer's access link. Rates in bytes per second on the wire; times in seconds, one way."""

    name: str
    up: float
    down: float
    latency_s: float
    jitter_s: float = 0.0
    """Largest additional delay of a message in seconds, drawn uniformly from 0."""
    loss: float = 0.0
    """Share of the packets that are lost, from 0 to below 1."""

    def __post_init__(self) -> None:
        assert self.up > 0
        assert self.down > 0
        assert self.latency_s >= 0
        assert 0 <= self.loss < 1


@dataclass(slots=True)
class LinkLoad:
    """The traffic of one peer's link: bytes on the wire in both directions, and small messages sent."""

    up: float = 0.0
    down: float = 0.0
    messages: int = 0
    relayed: float = 0.0
    """Bytes that the peer relayed for others. Not in `up` and `down`."""

    def sent(self, nbytes: float) -> None:
        self.up += nbytes

    def received(self, nbytes: float) -> None:
        self.down += nbytes

    def sent_message(self) -> None:
        self.messages += 1

    def passed_on(self, nbytes: float) -> None:
        self.relayed += nbytes


PROFILES = {
    link.name: link
    for link in (
        Link("lan", 100e6, 100e6, 0.005),
        Link("datacentre", 10_000 * MBIT, 10_000 * MBIT, 0.0005),
        Link("fibre", 500 * MBIT, 500 * MBIT, 0.004, 0.001, 1e-6),
        Link("home", 10 * MBIT, 100 * MBIT, 0.015),
        Link("cable", 10 * MBIT, 100 * MBIT, 0.010, 0.004, 1e-5),
        Link("dsl", 5 * MBIT, 25 * MBIT, 0.015, 0.005, 1e-4),
        Link("lte", 8 * MBIT, 30 * MBIT, 0.030, 0.025, 1e-3),
        Link("transatlantic", 500 * MBIT, 500 * MBIT, 0.045, 0.002, 1e-5),
        Link("full", 30_000.0, 60_000.0, 0.25, 0.75, 0.02),
    )
}
"""`lan` is for tests that are not about links: fast and without randomness. `home` is the reference home: two of them
are 30 ms apart. `full` is a line that other traffic fills: a message takes half a second to two."""


def profile(name: str) -> Link:
    """Return the link profile of this name. Raises UsageError for an unknown one."""
    if name in PROFILES:
        return PROFILES[name]
    near = difflib.get_close_matches(name, PROFILES, 1, 0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no link profile {name!r}", f"{hint}Known: {', '.join(PROFILES)}.")


def capped(link: Link, max_upload: float | None = None, max_download: float | None = None) -> Link:
    """Return the link limited to a volunteer's caps, in bytes per second. Caps count payload frames, without the
    headers that TLS, TCP and IP add."""
    up, down = (math.inf if cap is None else _under(cap) for cap in (max_upload, max_download))
    return replace(link, up=min(link.up, up), down=min(link.down, down))


def _under(cap: float) -> float:
    """Return the rate on the wire, headers included, of a bulk transfer under this cap."""
    size, long = chunk_size(cap), 2**30
    return BULK_SHARE * cap * size / (size + HEADER.size) * wire_bytes(long) / long


def one_way_s(sender: Link, receiver: Link) -> float:
    """Return the one-way latency between two links in seconds, without jitter and loss."""
    return sender.latency_s + receiver.latency_s


def path_loss(sender: Link, receiver: Link) -> float:
    return 1 - (1 - sender.loss) * (1 - receiver.loss)


def stream_cap(sender: Link, receiver: Link) -> float:
    """Return the most bytes per second of one TCP stream over this path, besides the rates of its links. Infinite
    without loss."""
    loss, rtt = path_loss(sender, receiver), 2 * one_way_s(sender, receiver)
    return MSS / rtt * math.sqrt(1.5 / loss) if loss > 0 and rtt > 0 else math.inf


def message_s(sender: Link, receiver: Link, rng: random.Random) -> float:
    """Draw the seconds that a small message takes one way. Bulk transfers do not delay it; jitter and loss may."""
    took = sender.latency_s + receiver.latency_s
    if jitter := sender.jitter_s + receiver.jitter_s:
        took += rng.uniform(0, jitter)
    if (sender.loss or receiver.loss) and (loss := path_loss(sender, receiver)):
        timeout = max(LEAST_RTO_S, 2 * one_way_s(sender, receiver))
        while rng.random() < loss and timeout < 60:
            took += timeout
            timeout *= 2
    return took


def wire_bytes(payload: int) -> float:
    """Return the bytes on the wire for a payload: with the frames of the exchange, HTTP/2, TLS, TCP and IP."""
    framed = payload + math.ceil(payload / CHUNK) * CHUNK_FRAME
    sealed = framed + math.ceil(framed / TLS_RECORD) * TLS_AND_HTTP2
    return sealed * (1 + TCP_IP / MSS)
