"""How far does a server's memory grow when callers send all they can and nobody reads it? Linux only.

Promise 6: every length is bounded before it is trusted. Bound: the memory grows by at most 64 MiB with as many calls as
one address may make. Under a minute.

    python -m benchmarks.held_windows [--seconds 20] [--hammer] [--json FILE] [--results]

A server runs in a process of its own, and parks every swap. Twenty keys open eight swaps each, and 64 Hellos begin with
a message too long to be one. The second time the swaps begin like that, too. `--hammer`: each call has a connection of
its own, and comes again as soon as it is refused. That figure has no bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from benchmarks.result import Benchmark, Figure, options, parsed, publish
from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.node.process import tune_malloc
from peer.protocol.messages import Answer, PeerId, RoundKey, RunId, Verdict
from peer.protocol.wire.frames import MAX_CHUNK, Kind, pack
from peer.python_child import start_python
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused

RUN, LAYOUT = RunId(b"windows".ljust(32, b".")), b"L" * 32
SWAPS, HELLOS = 160, 64
OF_A_KEY, OF_A_CONNECTION = 8, 16
AGAIN_S = 0.1
GROWTH_MIB = 64.0
ABOUT = Benchmark(
    "held_windows",
    "How far does a server's memory grow when callers send all they can and nobody reads it?",
    "6 (every length is bounded before it is trusted)",
    smallest="--seconds 1",
)
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""Errors with which a call ends when the server refuses it."""


class Parks(RequestHandler):
    """A request handler that answers every swap with LATER, which keeps the call open."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LATER)


async def serve() -> None:
    """Serve until standard input ends."""
    identity = Identity.generate()
    tune_malloc()
    transport = GrpcTransport(identity, RUN, Parks(), RunClock().now)
    transport.begin_run(RunTerms(LAYOUT, 2**30))
    print(identity.peer_id, await transport.start("127.0.0.1", 0), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await transport.close()


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def stuff(begin: Callable[[], Any], first: bytes, rest: bytes, hammer: bool) -> None:
    """Open calls and write to them until the server refuses more."""
    while True:
        with contextlib.suppress(*BROKEN):
            call = begin()
            await call.write(first)
            while True:
                await call.write(rest)
        if not hammer:
            return
        await asyncio.sleep(AGAIN_S)


def hello(caller: HostileCaller) -> Any:
    """A raw Hello stream."""
    return caller.channel.stream_stream("/peer.v1.Exchange/Hello")(timeout=30)


def dials(server: PeerId) -> Identity:
    """Return a key with a smaller id than the server's, which therefore dials."""
    while (identity := Identity.generate()).peer_id >= server:
        pass
    return identity


async def flood(
    endpoint: str,
    server: PeerId,
    callers: contextlib.AsyncExitStack,
    group: asyncio.TaskGroup,
    blunt: bool,
    hammer: bool,
) -> int:
    """Open all calls and return their number. `blunt`: swaps too begin with an oversized message."""
    calls, long = 0, b"y" * (MAX_CHUNK - 100)
    of_a_key, of_a_connection = (1, 1) if hammer else (OF_A_KEY, OF_A_CONNECTION)
    for _ in range(SWAPS // of_a_key):
        caller = await callers.enter_async_context(HostileCaller(endpoint, server, RUN, dials(server)))
        with contextlib.suppress(Refused):
            token = await caller.hello(layout_digest=LAYOUT)
            for number in range(of_a_key):
                body = pb.SwapOpen(round=number, codec="fp32", nbytes=2**28).SerializeToString()
                opening, rest = (long, long) if blunt else (pack(Kind.OPEN, 0, body), b"x" * 2**15)
                group.create_task(stuff(partial(caller.open, "Swap", token), opening, rest, hammer))
                calls += 1
    for _ in range(HELLOS // of_a_connection):
        caller = await callers.enter_async_context(HostileCaller(endpoint, server, RUN))
        for _ in range(of_a_connection):
            group.create_task(stuff(partial(hello, caller), long, long, hammer))
            calls += 1
    return calls


async def peak_mib(pid: int, seconds: float) -> float:
    peak, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        peak = max(peak, rss_mib(pid))
        await asyncio.sleep(0.05)
    return peak


async def measure(seconds: float, blunt: bool, hammer: bool) -> Figure:
    """Flood one server for `seconds`."""
    calls = 0
    pipe = asyncio.subprocess.PIPE
    server = await start_python("benchmarks.held_windows", "--serve", stdin=pipe, stdout=pipe)
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        peer, port = (await server.stdout.readline()).decode().split()
        before = rss_mib(server.pid)
        peak = asyncio.create_task(peak_mib(server.pid, seconds))
        async with contextlib.AsyncExitStack() as callers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    calls = await flood(f"127.0.0.1:{port}", PeerId(peer), callers, group, blunt, hammer)
                    await asyncio.sleep(seconds)
        grown = await peak - before
        how = "all too long at once" if blunt else "swaps that wait"
        return Figure(f"{calls} calls, {how}", "MiB", grown, None if hammer else GROWTH_MIB)
    finally:
        server.stdin.close()
        await server.wait()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hammer", action="store_true")
    parser.add_argument("--serve", action="store_true", help="be the server")
    given = parsed(parser, ABOUT)
    if given.serve:
        asyncio.run(serve())
        return
    figures = [asyncio.run(measure(given.seconds, blunt, given.hammer)) for blunt in (False, True)]
    publish(given, ABOUT, figures, variant="hammer" if given.hammer else "")


if __name__ == "__main__":
    main()
