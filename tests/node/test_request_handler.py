"""What a peer's handler hands on, by the name that is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from peer.node.handler import RequestHandler, ServedParts


def test_what_an_owner_averaged_is_asked_of_the_group() -> None:
    handler, asked = RequestHandler(), list[tuple[str, int]]()

    def on_shown(name: str, piece: int) -> memoryview:
        asked.append((name, piece))
        return memoryview(b"parts")

    assert handler.on_piece("shard:ab:0", 2) is None, "in no group yet"
    group: Any = SimpleNamespace(on_shown=on_shown)
    handler.serve(ServedParts(group=group))
    assert handler.on_piece("shard:ab:0", 2) == b"parts"
    assert handler.on_piece("fragment:0:ab", 0) is None
    assert asked == [("shard:ab:0", 2)]
