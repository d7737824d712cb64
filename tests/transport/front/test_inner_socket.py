"""The sockets between the fronts and gRPC, in the variants for Linux and for other systems."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from functools import partial
from pathlib import Path

import pytest

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, RunId
from peer.transport import tls
from peer.transport.front import dialling
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import OPEN
from peer.transport.server import listener
from tests.security.strangers.test_hostile_servers import record_of
from tests.support.hostile_client import HostileCaller

RUN = RunId(b"R" * 32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    return short


def names_in(folder: Path) -> list[str]:
    return [path.name for made in folder.iterdir() for path in made.iterdir()]


@pytest.mark.parametrize("nameless", [True, False])
def test_callers_are_told_apart_peers_are_called_and_nothing_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    for module in (listener, dialling):
        monkeypatch.setattr(module, "InnerSocket", partial(InnerSocket, nameless=nameless))

    async def main() -> None:
        identity = Identity.generate()
        transport = GrpcTransport(identity, RUN, RequestHandler(), RunClock().now, OPEN)
        at = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
        for _ in range(3):
            async with HostileCaller(at, PeerId(identity.peer_id), RUN) as caller:
                assert await caller.hello()
        assert names_in(folder) == ([] if nameless else ["grpc"])
        ours = GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now, OPEN)
        await ours.hello(record_of(identity.peer_id, int(at.rpartition(":")[2])), 10.0)
        assert names_in(folder) == ([] if nameless else ["grpc", "grpc"])
        await ours.close()
        await transport.close()

    asyncio.run(main())
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_a_socket_that_keeps_its_name_needs_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(OSError, match="too long"):
        InnerSocket(nameless=False)
    assert list(deep.iterdir()) == []
    nameless = InnerSocket(nameless=True)
    nameless.close()
    nameless.close()
    assert list(deep.iterdir()) == []


def test_a_system_without_files_in_memory_reads_its_leaf_from_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls.sys, "platform", "darwin")
    context = tls.RenewedLeaf(Identity.generate()).context()
    assert isinstance(context, ssl.SSLContext)
    assert list(folder.iterdir()) == []
    folder.rmdir()
