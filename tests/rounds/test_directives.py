"""A directive that ends before it takes effect changes nothing."""

from __future__ import annotations

import asyncio

from torch import Tensor

from peer.aio.events import Shutdown
from peer.observe.events import Event
from peer.protocol.messages import Status
from peer.protocol.policy.amendments import RunPolicy
from peer.rounds.directives import Directives
from peer.rounds.pause import LocalPause


def test_a_pause_that_ends_before_it_began_is_no_order_to_fetch_a_state() -> None:
    told, emitted, asked = list[tuple[Status, str]](), list[Event](), list[bytes]()

    async def fetch(digest: bytes) -> Tensor | None:
        asked.append(digest)
        return None

    orders = Directives(lambda round_: RunPolicy(), b"", fetch, LocalPause())

    async def main() -> tuple[int, Tensor | None]:
        return await orders.apply(7, Shutdown(), lambda r: r, lambda *words: told.append(words), emitted.append)

    assert asyncio.run(main()) == (7, None)
    assert (told, emitted, asked) == ([], [], [])
