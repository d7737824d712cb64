"""The socket on which gRPC listens behind the front, as Linux has it and as other systems do."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from functools import partial
from pathlib import Path

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import AddressError
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, RunId
from peer.transport import tls
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import OPEN
from peer.transport.server import listener
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
def test_callers_are_told_apart_and_nothing_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    monkeypatch.setattr(listener, "InnerSocket", partial(InnerSocket, nameless=nameless))

    async def main() -> None:
        identity = Identity.generate()
        transport = GrpcTransport(identity, RUN, RequestHandler(), RunClock().now, OPEN)
        at = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
        for _ in range(3):
            async with HostileCaller(at, PeerId(identity.peer_id), RUN) as caller:
                assert await caller.hello()
        assert names_in(folder) == ([] if nameless else ["grpc"])
        await transport.close()

    asyncio.run(main())
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_a_socket_that_keeps_its_name_needs_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(AddressError, match="too long"):
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
