"""Attacks of one caller on a peer: lies to a locked partner, invalid Hellos, floods.

`benchmarks.hostile` measures their cost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from peer.identity import Identity, public_key_of
from peer.lab.localswarm.processes import Daemon
from peer.node.handler import RequestHandler
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.wire.frames import HEADER, MAX_CHUNK, Kind, PayloadWriter, pack
from peer.signed_record import seal
from peer.transport.grpc_transport import GrpcTransport
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused, ended

BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


@dataclass
class Target:
    """The peer that is attacked."""

    endpoint: str
    peer: PeerId
    run: RunId
    layout: bytes
    nbytes: int
    """Size of a payload in bytes."""
    daemon: Daemon

    only: Identity | None = None
    """The attacker's only key. None: a fresh key for each call."""

    def caller(self, identity: Identity | None = None) -> HostileCaller:
        return HostileCaller(self.endpoint, self.peer, self.run, identity or self.only)


def record_of(identity: Identity, age_s: float = 0.0, endpoint: str = "") -> Callable[[RunId], bytes]:
    at, endpoints = time.time() - age_s, (endpoint,) if endpoint else ()
    me = PeerId(identity.peer_id)
    return lambda run: seal(
        PeerRecord(me, run, endpoints, bool(endpoint), 1, 1, 0, 0.0, Status.TRAINING, at, at + 100), identity
    )


async def hellos(target: Target) -> None:
    """Send one invalid Hello of each kind."""
    forged = record_of(Identity.generate())(target.run)
    wrong: list[dict[str, Any]] = [
        {"layout_digest": b"M" * 32},
        {"run_id": b"S" * 32},
        {"wire_min": 9, "wire_max": 9},
        {"clock": float("nan")},
        {"signer": Identity.generate()},
        {"signed": target.run + public_key_of(target.peer) + secrets.token_bytes(32)},
        {"record": forged},
        {"record": forged[:-1] + b"x"},
    ]
    for changes in wrong:
        async with target.caller() as caller:
            with contextlib.suppress(Refused):
                await caller.hello(**changes)
    async with target.caller() as caller:
        with contextlib.suppress(Refused):
            await caller.hello(record=record_of(caller.identity, age_s=60.0)(target.run))


async def calls(target: Target) -> None:
    """Make calls with an invalid or missing token, oversized messages, and silent streams."""
    async with target.caller() as caller:
        for token in (b"", b"x" * 32) * 10:
            with contextlib.suppress(Refused):
                await caller.unary("Offer", token)
        with contextlib.suppress(Refused):
            token = await caller.hello()
            large = [asyncio.create_task(caller.unary("Offer", token, b"\0" * MAX_CHUNK)) for _ in range(32)]
            idle = [caller.open(method, token) for method in ("Offer", "Swap", "FetchPiece") for _ in range(8)]
            await asyncio.gather(*large, return_exceptions=True)
            await asyncio.gather(*(ended(call) for call in idle))


async def idlers(target: Target) -> None:
    """Open connections without a TLS handshake, and Hellos with an incomplete large message."""
    host, _, port = target.endpoint.rpartition(":")
    sockets = [socket.create_connection((host, int(port)), timeout=2) for _ in range(100)]
    async with target.caller() as caller:
        streams = [caller.channel.stream_stream("/peer.v1.Exchange/Hello")(timeout=20) for _ in range(80)]
        body = pb.HelloRequest(open=pb.HelloOpen(record=b"\0" * (MAX_CHUNK - 1000))).SerializeToString()
        await asyncio.gather(*(stream.write(body) for stream in streams), return_exceptions=True)
        await asyncio.gather(*(ended(stream) for stream in streams))
    await asyncio.sleep(2)
    for opened in sockets:
        opened.close()


def opening(round_: int, nbytes: int) -> bytes:
    return pack(Kind.OPEN, 0, pb.SwapOpen(round=round_, codec="fp32", nbytes=nbytes).SerializeToString())


def constant(value: float, nbytes: int) -> list[bytes]:
    """Return the frames of a well-formed payload that repeats one value."""
    data, writer = np.full(nbytes // 4, value, dtype="<f4").tobytes(), PayloadWriter()
    frames = [writer.chunk(data[at : at + MAX_CHUNK]) for at in range(0, nbytes, MAX_CHUNK)]
    return [*frames, writer.end()]


LIES: dict[str, Callable[[int, int], list[bytes]]] = {
    "checksum": lambda r, n: [opening(r, n), HEADER.pack(b"PEER", 1, 2, 0, 0, 8, 1) + b"12345678"],
    "shape": lambda r, n: [opening(r, n - 4)],
    "2**40": lambda r, n: [opening(r, 2**40)],
    "empty": lambda r, n: [opening(r, 0), pack(Kind.END, 0, b"\0" * 32)],
    "NaN": lambda r, n: [opening(r, n), *constant(float("nan"), n)],
    "infinity": lambda r, n: [opening(r, n), *constant(float("inf"), n)],
    "norm": lambda r, n: [opening(r, n), *constant(1e6, n)],
    "garbage": lambda r, n: [opening(r, n), secrets.token_bytes(1000)],
    "half": lambda r, n: [opening(r, n), constant(0.0, n)[0]],
    "nothing": lambda r, n: [opening(r, n)],
    "leaves": lambda r, n: [opening(r, n)],
}


class Liar(RequestHandler):
    """A peer that accepts every offer, so that the victim locks and dials it, and then receives a lie."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity = identity
        self.locked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        if not self.locked.done() and not offer.withdraw:
            self.locked.set_result(offer.key.round)
        return Answer(Verdict.LOCKED, eta_s=1e4)  # claims the latest ready time that peers accept

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LATER)


def keys_below(peer: PeerId, count: int) -> list[Identity]:
    """Return keys with smaller ids than this peer's, so that they are the ones that dial."""
    keys: list[Identity] = []
    while len(keys) < count:
        key = Identity.generate()
        keys += [key] if key.peer_id < peer else []
    return keys


async def lie(target: Target, identity: Identity, what: str, locked: Counter[str]) -> None:
    """Act as a candidate until locked, then send the lie."""
    liar = Liar(identity)
    server = GrpcTransport(identity, target.run, liar, time.time)
    port = await server.start("127.0.0.1", 0)
    try:
        async with target.caller(identity) as caller:
            record = record_of(identity, endpoint=f"127.0.0.1:{port}")(target.run)
            token = await caller.hello(layout_digest=target.layout, record=record)
            async with asyncio.timeout(8):
                round_ = await liar.locked
            locked[what] += 1
            async with asyncio.timeout(2.5 if what == "leaves" else 30):
                await caller.swap(token, LIES[what](round_, target.nbytes), hang=True)
    except TimeoutError:  # another candidate was chosen, or the time is over
        return
    finally:
        await server.close()


async def garbage(target: Target) -> None:
    """Send random bytes in a swap that the peer does not expect."""
    async with target.caller() as caller:
        await caller.swap(await caller.hello(), [secrets.token_bytes(100)])


async def lie_in_turn(target: Target, liars: dict[str, Identity], locked: Counter[str]) -> None:
    for what, identity in liars.items():
        with contextlib.suppress(Refused, OSError, *BROKEN):
            await lie(target, identity, what, locked)


def each_for_itself(target: Target, liars: dict[str, Identity]) -> list[dict[str, Identity]]:
    """Return groups of lies that run in parallel. With a single key all lies are one group, and run one after the
    other."""
    if target.only is not None:
        return [dict.fromkeys(liars, target.only)]
    return [{what: identity} for what, identity in liars.items()]


async def attack(target: Target, seconds: float, liars: dict[str, Identity], locked: Counter[str]) -> None:
    """Run the lies first, because they need Hellos. In the last third of the time add the floods, which use up our
    address's Hellos."""

    async def again(what: Callable[[], Awaitable[None]], after_s: float, pause_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            with contextlib.suppress(Refused, OSError, *BROKEN):
                await what()
            await asyncio.sleep(pause_s)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for some in each_for_itself(target, liars):
                group.create_task(again(functools.partial(lie_in_turn, target, some, locked), 0.0, 0.5))
            group.create_task(again(lambda: garbage(target), 0.5, 5.0))
            group.create_task(again(lambda: hellos(target), 1.0, 10.0))
            group.create_task(again(lambda: calls(target), 2.0, 5.0))
            group.create_task(again(lambda: idlers(target), 2 * seconds / 3, 1.0))
