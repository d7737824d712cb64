"""The operator's node must announce itself at once, also on a machine that has just booted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.node.operator.presence import announce
from peer.node.record import PeerAddress
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status


@pytest.mark.parametrize("up_s", [0.5, 1e6])
def test_the_first_record_waits_for_nothing(up_s: float) -> None:
    shown: asyncio.Queue[PeerRecord] = asyncio.Queue()
    looks = []

    async def peers() -> dict[PeerId, PeerRecord]:
        looks.append(True)
        return {}

    async def settle() -> bool:
        return False

    address = PeerAddress(PeerId("node"), RunId(b"r" * 32), lambda: ("127.0.0.1:1",), lambda: True)
    node = SimpleNamespace(
        directory=SimpleNamespace(peers=peers, announce=shown.put),
        local=SimpleNamespace(clock=SimpleNamespace(now=lambda: 1_700_000_000.0)),
        address=lambda: address,
        endpoints=lambda: ("127.0.0.1:1",),
    )
    start = SimpleNamespace(settle=settle, value=0.0)
    giving = SimpleNamespace(learn=lambda records: None)
    keeper = SimpleNamespace(status=Status.TRAINING, round=0, ended=False)

    async def first() -> PeerRecord:
        parts = cast(Any, (node, start, giving, keeper))
        showing = asyncio.create_task(announce(*parts, 600.0, now=lambda: up_s))
        try:
            return await asyncio.wait_for(shown.get(), 60.0)
        finally:
            showing.cancel()

    assert asyncio.run(first()).endpoints == ("127.0.0.1:1",)
    assert looks
