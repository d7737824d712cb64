"""Servers answer with HTTP/2 that no server of ours sends. None of it may reach gRPC's client.

Ten servers in one process play each variant at the speed of loopback, before and after they answered our Hello.
`HTTP2_ABUSE=50 make attack` also plays fifty of the clients' variants, drawn by `HTTP2_ABUSE_SEED`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import ExchangeError
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.grpc_transport import GrpcTransport
from tests.support.hostile_servers import Play, variants
from tests.support.http2_abuse import resident

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

RUN = RunId(b"R" * 32)
SERVERS = 10
CALL_S, PLAY_S = 1.0, 0.3
DRAWN = int(os.environ.get("HTTP2_ABUSE", "0"))
SEED = int(os.environ.get("HTTP2_ABUSE_SEED", "1"))
ANSWER_S = 2.0 if "HTTP2_ABUSE" in os.environ else 10.0
"""Seconds of an honest Hello, at most. The short play runs beside other tests."""
MEMORY = 100.0
"""MiB above the memory before the first play, at most."""


def record_of(peer_id: str, port: int) -> PeerRecord:
    now = time.time()
    endpoints = (f"127.0.0.1:{port}",)
    return PeerRecord(PeerId(peer_id), RUN, endpoints, True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 3600)


class Servers:
    """The process of the hostile servers, and their records."""

    def __init__(self, process: asyncio.subprocess.Process, records: list[PeerRecord]) -> None:
        self._process = process
        self.records = records

    async def play(self, play: Play) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(play)).encode() + b"\n")
        await self._process.stdout.readline()


@contextlib.asynccontextmanager
async def hostile() -> AsyncIterator[Servers]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.hostile_servers", str(SERVERS), str(SEED)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        listening = json.loads(await process.stdout.readline())
        yield Servers(process, [record_of(peer_id, port) for peer_id, port in listening])
    finally:
        process.kill()
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def honest() -> AsyncIterator[PeerRecord]:
    identity = Identity.generate()
    server = GrpcTransport(identity, RUN, RequestHandler(), RunClock().now)
    try:
        yield record_of(identity.peer_id, await server.start("127.0.0.1", 0))
    finally:
        await server.close()


async def call_for_a_while(ours: GrpcTransport, record: PeerRecord) -> None:
    until = time.monotonic() + PLAY_S
    while time.monotonic() < until:
        with pytest.raises(ExchangeError):
            await ours.offer(record, Offer(RoundKey(0, 0)), CALL_S)
        await asyncio.sleep(0.02)


async def most_resident(meanwhile: asyncio.Future[list[None]]) -> float:
    """Return the peak memory of this process in MiB."""
    most = 0.0
    while not meanwhile.done():
        most = max(most, resident(os.getpid()))
        await asyncio.wait([meanwhile], timeout=0.02)
    await meanwhile
    return most


def test_ten_servers_that_abuse_http2_cost_their_caller_little_and_keep_it_from_nobody() -> None:
    async def main() -> None:
        ours = GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now)
        async with hostile() as servers, honest() as other:
            await ours.hello(other, ANSWER_S)
            before = resident(os.getpid())
            for number, variant in enumerate(variants(DRAWN, SEED)):
                for proof in (False, True):
                    await servers.play(Play(number, DRAWN, proof))
                    calling = asyncio.gather(*(call_for_a_while(ours, record) for record in servers.records))
                    most = await most_resident(calling)
                    assert most <= before + MEMORY, (variant.name, proof)
                    await ours.hello(other, ANSWER_S)
                    if "HTTP2_ABUSE" in os.environ:
                        print(f"{variant.name}, {'after' if proof else 'before'} a Hello: {most - before:+.0f} MiB")
                    await ours.forget_connections()
        await ours.close()

    asyncio.run(main())
