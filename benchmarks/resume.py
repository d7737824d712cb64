"""Two peers exchange over a link that breaks in the middle and comes back: how much longer it takes, and how much is
sent again. `python -m benchmarks.resume [--mbit 20] [--mb 10]`

A link that `breaks` resets its connections and refuses new ones while it is away; one that is `forgotten` lets nothing
through on those that stood, as behind a router that was restarted: it is noticed after 5 s of silence. Sent again: what
the link took in more than where it never broke (with about 6 kB of handshakes), of the way where it is more; and how
many chunks that is."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.protocol.messages import Answer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.grpc_transport import GrpcTransport
from tests.support.cutting_relay import Wire, before

RUN, KEY, TIMEOUT_S = RunId(b"R" * 32), RoundKey(1, 0), 120.0
MBIT = 125_000.0
CASES = [*(("breaks", share, away_s) for share in (10, 50, 90) for away_s in (0.0, 8.0)), ("forgotten", 50, 0.0)]
PAST = (0, 65_000, 130_000, 195_000, 260_000)
"""Bytes: a link breaks in the middle of a chunk. The worst of these counts."""


class Willing:
    """Swaps with everybody."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


class Sink(BufferSink):
    """`chunk`: the size of the largest that came."""

    chunk = 0

    def write(self, offset: int, data: bytes) -> None:
        super().write(offset, data)
        self.chunk = max(self.chunk, len(data))


@dataclass(frozen=True, slots=True)
class Found:
    """`there`, `back`: bytes that the link took in, each way; `chunk`: the size of the largest."""

    seconds: float
    there: int
    back: int
    chunk: int


async def case(how: str, share: int, past: int, away_s: float, nbytes: int, rate: float) -> Found:
    """One exchange. `past`: so many bytes behind this share of the payload the link breaks."""
    async with AsyncExitStack() as stack:
        wire, ends, owner = Wire(rate), [], Willing()
        for _ in range(2):
            identity = Identity.generate()
            transport = GrpcTransport(identity, RUN, owner, RunClock().now)  # type: ignore[arg-type]
            transport.set_layout(b"L" * 32, 2**30)
            stack.push_async_callback(transport.close)
            where = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
            where = await stack.enter_async_context(before(where, wire))
            now = RunClock().now()
            me = PeerId(identity.peer_id)
            ends.append(
                (transport, PeerRecord(me, RUN, (where,), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60.0))
            )
        loop = asyncio.get_running_loop()

        def cut() -> None:
            if how == "breaks":
                wire.sever()
                loop.call_later(away_s, wire.mend)
            elif how == "forgotten":
                wire.forget()

        data = bytes(range(256)) * (nbytes // 256)
        wire.when(len(data) * share // 100 + past, cut)
        sinks = Sink(len(data)), BufferSink(len(data))
        began = loop.time()
        await asyncio.gather(
            ends[0][0].swap(ends[1][1], KEY, BytesSource(data), sinks[0], TIMEOUT_S, True),
            ends[1][0].swap(ends[0][1], KEY, BytesSource(data), sinks[1], TIMEOUT_S, False),
        )
        took = loop.time() - began
        assert all(bytes(sink.data) == data for sink in sinks)
        return Found(took, wire.there, wire.back, sinks[0].chunk)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mbit", type=float, default=20.0, help="of the link, each way")
    parser.add_argument("--mb", type=float, default=10.0, help="of each payload")
    given = parser.parse_args()
    print("| link | at | away | finished after | sent again | chunks |\n| --- | --- | --- | --- | --- | --- |")
    nbytes, rate = int(given.mb * 1e6), given.mbit * MBIT
    whole = await case("never", 0, 0, 0.0, nbytes, rate)
    print(f"| never | | | {whole.seconds:.1f} s | | |")
    for how, share, away_s in CASES:
        found = [await case(how, share, past, away_s, nbytes, rate) for past in PAST[: 1 if away_s else None]]
        again = max(max(one.there - whole.there, one.back - whole.back) for one in found)
        chunk, seconds = found[0].chunk, max(one.seconds for one in found)
        chunks = f"{again / chunk:.1f} of {chunk / 1024:.0f} KiB"
        print(f"| {how} | {share} % | {away_s:g} s | {seconds:.1f} s | {again / 1000:.0f} kB | {chunks} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
