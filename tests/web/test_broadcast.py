"""One account for all viewers: rendered once per pulse, and only changes are sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from peer.web.broadcast import IDLE_PULSE_S, Broadcast


class Source:
    """An account that counts its renderings, and a clock."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {"a": 1, "b": [1, 2]}
        self.made = 0
        self.now = 0.0

    def __call__(self) -> dict[str, Any]:
        self.made += 1
        return dict(self.parts)


def test_a_hundred_viewers_cost_one_rendering() -> None:
    async def main() -> int:
        source = Source()
        broadcast = Broadcast(source, lambda: source.now)
        viewers = [broadcast.frames() for _ in range(100)]
        first = {await anext(viewer) for viewer in viewers}
        assert first == {b"event: a\ndata: 1\n\nevent: b\ndata: [1,2]\n\n"}
        return source.made

    assert asyncio.run(main()) == 1


def test_only_what_changed_is_sent_and_who_was_slow_gets_the_newest() -> None:
    async def main() -> None:
        source = Source()
        broadcast = Broadcast(source, lambda: source.now)
        quick, slow = broadcast.frames(), broadcast.frames()
        await anext(quick)
        await anext(slow)
        source.now, source.parts = 1.0, {"a": 2, "b": [1, 2]}
        broadcast.snapshot()
        assert await anext(quick) == b"event: a\ndata: 2\n\n"
        source.now, source.parts = 2.0, {"a": 3, "b": []}
        assert json.loads(broadcast.snapshot()) == {"a": 3, "b": []}
        assert await anext(quick) == await anext(slow) == b"event: a\ndata: 3\n\nevent: b\ndata: []\n\n"

    asyncio.run(main())


def test_nothing_is_sent_while_nothing_changes() -> None:
    async def main() -> None:
        source = Source()
        broadcast = Broadcast(source, lambda: source.now)
        viewer = broadcast.frames()
        await anext(viewer)
        waiting = asyncio.ensure_future(anext(viewer))
        for second in range(1, 4):
            source.now = float(second)
            broadcast.snapshot()
            await asyncio.sleep(0)
        assert not waiting.done()
        source.now, source.parts["a"] = 9.0, 5
        broadcast.snapshot()
        assert await waiting == b"event: a\ndata: 5\n\n"

    asyncio.run(main())


def test_a_snapshot_is_made_at_most_once_a_second() -> None:
    source = Source()
    broadcast = Broadcast(source, lambda: source.now)
    assert len({id(broadcast.snapshot()) for _ in range(50)}) == 1
    assert source.made == 1
    source.now = 1.5
    broadcast.snapshot()
    assert source.made == 2


def test_closing_sends_the_last_account_and_ends_every_stream() -> None:
    async def main() -> None:
        source = Source()
        broadcast = Broadcast(source, lambda: source.now)
        viewer = broadcast.frames()
        await anext(viewer)
        source.parts["a"] = "leaving"
        broadcast.close()
        assert [frame async for frame in viewer] == [b'event: a\ndata: "leaving"\n\n']
        assert broadcast.enter("127.0.0.1") is None

    asyncio.run(main())


def test_without_viewers_the_account_is_made_seldom() -> None:
    async def main() -> None:
        source = Source()
        broadcast = Broadcast(source, lambda: source.now)
        for second in (0.0, 1.0, 2.0, IDLE_PULSE_S):
            source.now = second
            broadcast._render(IDLE_PULSE_S)
        assert source.made == 2

    asyncio.run(main())
