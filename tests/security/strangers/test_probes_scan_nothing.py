"""Strangers cannot scan networks by a peer's dial-backs: only their own address is dialled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, Probed, RunId, Status
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server.dial_back import SILENT

RUN = RunId(b"r" * 32)


class Greets:
    """A handler that only serves Hellos."""

    def on_hello(self, record: PeerRecord) -> None:
        """Ignore the record."""


class Inner:
    """A service reachable only from its own machine, which counts its callers."""

    def __init__(self, host: str) -> None:
        self.host, self.callers, self.port = host, 0, 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Inner]:
        def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.callers += 1
            writer.close()

        server = await asyncio.start_server(called, self.host, 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


async def probed(endpoints: tuple[str, ...]) -> Probed:
    """Ask a real peer over gRPC to dial us back at these endpoints."""
    ends = [GrpcTransport(Identity.generate(), RUN, cast(Any, Greets()), RunClock().now) for _ in range(2)]
    try:
        for end in ends:
            await end.start("127.0.0.1", 0)
        asked = ends[0]._config.identity.peer_id
        at = (f"127.0.0.1:{ends[0]._port}",)
        record = PeerRecord(PeerId(asked), RUN, at, True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 1e12)
        return await ends[1].probe(record, endpoints, 10.0)
    finally:
        for end in ends:
            await end.close()


def test_a_name_that_means_two_addresses_by_turns_reaches_no_inner_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name resolves to a public address when it is checked, and to a private one when it is dialled."""
    resolve, answers = asyncio.BaseEventLoop.getaddrinfo, ["8.8.8.8", "127.0.0.2"]
    looked_up = list[str]()

    async def rebinding(self: Any, host: Any, port: Any, **how: Any) -> Any:
        if host == "rebinding.example":
            looked_up.append(host)
            host = answers[min(len(looked_up), len(answers)) - 1]
        return await resolve(self, host, port, **how)

    async def main() -> tuple[Probed, int]:
        async with Inner("127.0.0.2").open() as inner:
            return await probed((f"rebinding.example:{inner.port}",)), inner.callers

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", rebinding)
    found, callers = asyncio.run(main())
    assert callers == 0
    assert looked_up == []
    assert all(endpoint.startswith("127.0.0.1:") for endpoint in found.tried)


def test_open_and_closed_ports_look_the_same() -> None:
    """One port has another service, one refuses, and one closes the connection."""

    async def main() -> tuple[Probed, Probed]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            refusing = free.getsockname()[1]
        async with Inner("127.0.0.1").open() as inner:
            return await probed((f"127.0.0.1:{inner.port}",)), await probed((f"127.0.0.1:{refusing}",))

    taken, refused = asyncio.run(main())
    assert len(taken.tried) == len(refused.tried) == 2, "the own port, and the one named"
    assert len(taken.answered) == len(refused.answered) == 1, "the own port alone"
    assert taken.reason == refused.reason == SILENT
