"""Are the caps kept? Two peers swap over loopback TLS, the sender capped; counts the bytes of every 2-second window.

    python benchmarks/caps.py [--cap 1250000] [--seconds 8] [--out caps.json]

Prints the fullest window and the rate used, both as parts of the cap. Three ways: the sender's own upload cap,
the receiver's download cap (which the sender is told), and two swaps at once through one upload cap."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.grpc_transport import GrpcTransport

RUN = RunId(b"caps".ljust(32, b"."))
WINDOW_S = 2.0


class Agreeable:
    """A handler that swaps with everybody."""

    def on_hello(self, record: PeerRecord) -> None:
        return None

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_manifest(self) -> None:
        return None

    def on_state(self, fresh: bool = False, wanted: str = "") -> None:
        return None

    def on_piece(self, snapshot: str, piece: int) -> None:
        return None


class TimedSink(BufferSink):
    """Remembers when which bytes came."""

    def __init__(self, nbytes: int, arrivals: list[tuple[float, int]]) -> None:
        super().__init__(nbytes)
        self._arrivals = arrivals

    def write(self, offset: int, data: bytes) -> None:
        self._arrivals.append((time.monotonic(), len(data)))
        super().write(offset, data)


async def peer(**caps: Any) -> tuple[GrpcTransport, PeerRecord]:
    identity, clock = Identity.generate(), RunClock()
    transport = GrpcTransport(identity, RUN, Agreeable(), clock.now, **caps)
    transport.set_layout(b"L" * 32, 2**30)
    port = await transport.start("127.0.0.1", 0)
    now = clock.now()
    me = PeerId(identity.peer_id)
    return transport, PeerRecord(me, RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 600)


async def measure(cap: float, seconds: float, swaps: int, sender: dict[str, Any], receiver: dict[str, Any]) -> Any:
    (one, one_record), (other, other_record) = await peer(**sender), await peer(**receiver)
    nbytes, arrivals = int(cap * seconds / swaps), list[tuple[float, int]]()
    payload = bytes(nbytes)

    async def swap(number: int) -> None:
        key, empty = RoundKey(number, 0), b"\0" * 16
        await asyncio.gather(
            one.swap(other_record, key, BytesSource(payload), BufferSink(16), 120, dial=True),
            other.swap(one_record, key, BytesSource(empty), TimedSink(nbytes, arrivals), 120, dial=False),
        )

    await asyncio.gather(*(swap(number) for number in range(swaps)))
    await one.close()
    await other.close()
    fullest = max(sum(n for t, n in arrivals if start <= t < start + WINDOW_S) for start, _ in arrivals)
    used = sum(n for _, n in arrivals[1:]) / (arrivals[-1][0] - arrivals[0][0])
    return {"fullest_window": fullest / (cap * WINDOW_S), "used": used / cap}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cap", type=float, default=1.25e6, help="bytes per second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cap, seconds = options.cap, options.seconds
    rows = {
        "upload cap": await measure(cap, seconds, 1, {"max_upload": cap}, {}),
        "download cap": await measure(cap, seconds, 1, {}, {"max_download": cap}),
        "two swaps, one upload cap": await measure(cap, seconds, 2, {"max_upload": cap}, {}),
    }
    print(f"cap {cap / 1e6:.3f} MB/s, windows of {WINDOW_S:g} s\n{'':<28}{'fullest window':>15}{'used':>8}")
    for name, row in rows.items():
        print(f"{name:<28}{row['fullest_window']:>15.3f}{row['used']:>8.3f}")
    if options.out:
        options.out.write_text(json.dumps({"cap": cap, **rows}, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
