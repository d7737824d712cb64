"""Does control traffic get through while bulk fills the line?

Promise 5: control beats bulk. Bounds: no call takes more than 2 s, and no live peer is declared dead. The benchmark
takes `--minutes`.

    python -m benchmarks.heartbeats [--minutes 10] [--rate 125000] [--delay 0.015] [--buffer 0.2] [--json FILE]
                                    [--results]

Two peers exchange payloads without a pause over a line of 1 Mbit/s each way. Every second each asks the other whether
it still holds the round, as partners of an exchange do. A call that is not answered in the time that the daemon allows
declares a live peer dead. Two such pairs run at the same time, each over a line of its own. One has no cap, so that the
senders fill the router's buffer of `--buffer` seconds. The other has a cap as fast as the line carries payload."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from dataclasses import dataclass, field, replace

from benchmarks import homelink
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.clock.run_clock import RunClock
from peer.errors import ExchangeError, PartnerLost
from peer.identity import Identity
from peer.lab.bench.tables import percentile
from peer.membership.failure_detector import FailureDetector
from peer.node.handler import RequestHandler
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.policy.upload_quota import FRAMING
from peer.protocol.swarm.rtt import MOST_S
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

RUN = RunId(b"heartbeats".ljust(32, b"."))
DELAY_S = 0.015
"""One-way delay in seconds."""
EVERY_S = 1.0
PAYLOAD_S = 20.0
"""Approximate seconds of one payload's transfer."""
WANTED_S = 2.0
ABOUT = Benchmark(
    "heartbeats",
    "Does control traffic get through while bulk fills the line?",
    "5 (control beats bulk)",
    smallest="--minutes 0.05",
)


@dataclass
class Seen:
    """Counts of one pair of peers."""

    pings: list[float] = field(default_factory=list)
    """Seconds of each answered call."""
    dead: list[str] = field(default_factory=list)
    """Reasons why a live peer was declared dead."""
    swaps: int = 0
    failed_swaps: list[str] = field(default_factory=list)
    sent: int = 0
    """Payload bytes sent in one direction."""


class Agreeable(RequestHandler):
    """A request handler that accepts every offer and swap."""

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


@dataclass
class Home:
    transport: GrpcTransport
    record: PeerRecord
    watch: FailureDetector


async def home(cap: float | None) -> Home:
    identity, clock = Identity.generate(), RunClock()
    transport = GrpcTransport(identity, RUN, Agreeable(), clock.now, TransportPolicy(max_upload=cap, max_download=cap))
    transport.begin_run(RunTerms(b"L" * 32, 2**30))
    port = await transport.start("127.0.0.1", 0)
    now, me = clock.now(), PeerId(identity.peer_id)
    record = PeerRecord(me, RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 1e6)
    return Home(transport, record, FailureDetector(clock.now))


async def pings(own: Home, to: PeerRecord, seen: Seen, until: float) -> None:
    """Ping a locked partner repeatedly, as `peer.exchange.pair.search` does."""
    while (began := time.monotonic()) < until:
        try:
            bound_s = min(MOST_S, own.watch.timeout(to.peer_id))
            await own.transport.offer(to, Offer(RoundKey(0, 0)), bound_s)
        except PartnerLost as error:
            own.watch.failed(to.peer_id, str(error), time.monotonic() - began)
            seen.dead.append(str(error))
        else:
            own.watch.answered(to.peer_id, time.monotonic() - began)
            seen.pings.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))


async def swaps(one: Home, other: Home, to_other: PeerRecord, nbytes: int, seen: Seen, until: float) -> None:
    """Swap payloads repeatedly, in both directions at once. A swap takes at most a few times `PAYLOAD_S`."""
    payload = bytes(nbytes)
    for number in itertools.count(1):
        if time.monotonic() >= until:
            return
        key, wait_s = RoundKey(number, 0), 6 * PAYLOAD_S
        try:
            async with asyncio.TaskGroup() as group:
                for side, partner, dial in ((one, to_other, True), (other, one.record, False)):
                    source, sink = BytesSource(payload), BufferSink(nbytes)
                    group.create_task(side.transport.swap(partner, key, source, sink, wait_s, dial=dial))
        except* ExchangeError as errors:
            seen.failed_swaps.append("; ".join(map(str, errors.exceptions)))
        else:
            seen.swaps += 1


async def measure(line: homelink.Line, cap: float | None, minutes: float) -> Seen:
    seen, until = Seen(), time.monotonic() + 60 * minutes
    async with contextlib.AsyncExitStack() as stack:
        homes = [await home(cap), await home(cap)]
        for one in homes:
            stack.push_async_callback(one.transport.close)
        there, back = homelink.Link(line), homelink.Link(line)
        seconds = await stack.enter_async_context(homelink.relay(homes[1].record.endpoints[0], there, back))
        firsts = await stack.enter_async_context(homelink.relay(homes[0].record.endpoints[0], back, there))
        to_second = replace(homes[1].record, endpoints=(seconds,))
        to_first = replace(homes[0].record, endpoints=(firsts,))
        bulk = asyncio.create_task(swaps(homes[0], homes[1], to_second, int(line.rate * PAYLOAD_S), seen, until))
        async with asyncio.TaskGroup() as group:
            group.create_task(pings(homes[0], to_second, seen, until))
            group.create_task(pings(homes[1], to_first, seen, until))
        bulk.cancel()  # the last payload is cut off when the time is over
        await asyncio.wait({bulk})
        if not bulk.cancelled():
            bulk.result()
        seen.sent = homes[0].transport.bytes_sent
    return seen


def row(name: str, seen: Seen, rate: float, minutes: float) -> list[str | float]:
    times = (statistics.median(seen.pings), percentile(seen.pings, 0.99))
    used = seen.sent / (rate * 60 * minutes)
    return [name, len(seen.pings), *(1e3 * seconds for seconds in times), seen.swaps, len(seen.failed_swaps), used]


async def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=125_000.0, help="of the line, bytes per second each way")
    parser.add_argument("--delay", type=float, default=DELAY_S, help="of the line, seconds one way")
    parser.add_argument("--buffer", type=float, default=homelink.BUFFER_S, help="seconds that a router holds")
    given = parsed(parser, ABOUT)
    homelink.BUFFER_S = given.buffer
    caps = {"no cap": None, "cap": given.rate / FRAMING}
    line = homelink.Line(given.rate, given.delay)
    found = await asyncio.gather(*(measure(line, cap, given.minutes) for cap in caps.values()))
    by_cap = dict(zip(caps, found, strict=True))
    for why in sorted({why for seen in found for why in seen.failed_swaps}):
        print(f"a swap failed: {why}")
    figures = [Figure(f"slowest call, {name}", "s", max(seen.pings), WANTED_S) for name, seen in by_cap.items()]
    figures += [Figure(f"live peers declared dead, {name}", "", len(seen.dead), 0) for name, seen in by_cap.items()]
    heads = ["", "calls", "median ms", "99 % ms", "swaps", "failed swaps", "part of the line used"]
    rows = [row(name, seen, given.rate, given.minutes) for name, seen in by_cap.items()]
    title = f"{given.rate * 8e-6:g} Mbit/s each way, a buffer of {given.buffer:g} s, {given.minutes:g} minutes"
    publish(given, ABOUT, figures, Table(title, heads, rows))


if __name__ == "__main__":
    asyncio.run(main())
