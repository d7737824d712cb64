"""One of the two processes of `peer.lab.bench.exchange`. It swaps with the other over gRPC with TLS, alternating with
an all-reduce of torch.distributed's gloo if asked for. Prints its record and its results as lines of JSON."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.codec.stream import Adding, Encoding
from peer.errors import PartnerLost
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.node.process import tune_malloc
from peer.protocol.messages import Answer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

RUN = RunId(b"B" * 32)
DIGEST = b"L" * 32
TIMEOUT_S = 120.0


class Willing(RequestHandler):
    """A request handler that accepts every swap."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


class Turns:
    """Wall-clock and processor seconds of this process, by kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def begin(self) -> Callable[[str], None]:
        """Start a measurement. Return a function that ends it and records it under a name."""
        wall, cpu = time.perf_counter(), time.process_time()

        def end(what: str) -> None:
            self.seconds.setdefault(what, []).append(time.perf_counter() - wall)
            self.cpu.setdefault(what, []).append(time.process_time() - cpu)

        return end


async def run(rank: int, codec_name: str, elements: int, repeats: int, gloo_store: str, cap: float) -> dict[str, Any]:
    """Run one end to its results: seconds and processor seconds of each repetition, and the peak memory in MiB. The
    first repetition warms up and is left out."""
    identity, codec = Identity.generate(), EVERY[codec_name]
    limit = cap or None
    caps = TransportPolicy(max_upload=limit, max_download=limit)
    transport = GrpcTransport(identity, RUN, Willing(), RunClock().now, caps)
    transport.begin_run(RunTerms(DIGEST, codec.nbytes(elements), codec_name))
    port = await transport.start("127.0.0.1", 0)
    _say({"peer": identity.peer_id, "endpoint": f"127.0.0.1:{port}"})
    other = await asyncio.to_thread(_hear)
    now = RunClock().now()
    partner = PeerRecord(
        PeerId(other["peer"]), RUN, (other["endpoint"],), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 3600
    )
    dial = identity.peer_id < other["peer"]
    own = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    into, turns = own.clone(), Turns()
    if gloo_store:
        dist.init_process_group("gloo", init_method=f"file://{gloo_store}", rank=rank, world_size=2)
    for number in range(repeats + 1):
        await _together(rank, gloo_store)
        end = turns.begin()
        source, sink = Encoding(codec, own), Adding(codec, into, 0.5)
        await _swap(transport, partner, RoundKey(number, 0), source, sink, dial)
        end("swap")
        if gloo_store:
            await _together(rank, gloo_store)
            end = turns.begin()
            await asyncio.to_thread(dist.all_reduce, into)
            end("gloo")
        into.copy_(own)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await transport.close()
    if gloo_store:
        dist.destroy_process_group()
    warm = {what: took[1:] for what, took in turns.seconds.items()}
    return {"seconds": warm, "cpu": {what: took[1:] for what, took in turns.cpu.items()}, "peak_mib": peak}


async def _swap(
    transport: GrpcTransport, partner: PeerRecord, key: RoundKey, source: Encoding, sink: Adding, dial: bool
) -> None:
    await transport.swap(partner, key, source, sink, TIMEOUT_S, dial)


async def _together(rank: int, gloo_store: str) -> None:
    """Wait until both ends are here, so that they begin at the same time. Needs gloo."""
    if gloo_store:
        await asyncio.to_thread(dist.barrier)


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _hear() -> dict[str, Any]:
    heard: dict[str, Any] = json.loads(sys.stdin.readline())
    return heard


def main() -> None:
    rank, codec, elements, repeats, store, cap = sys.argv[1:]
    tune_malloc()
    torch.set_num_threads(1)
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    try:
        _say(runner(run(int(rank), codec, int(elements), int(repeats), store, float(cap))))
    except PartnerLost as error:
        sys.exit(f"the swap failed: {error}")


if __name__ == "__main__":
    main()
