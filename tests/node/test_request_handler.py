"""The request handler passes each call to the service that is registered for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from peer.node.handler import RequestHandler
from peer.protocol.messages import Answer, Offer, PeerId, RoundKey, Verdict


def test_what_an_owner_averaged_is_asked_of_the_group() -> None:
    handler, asked = RequestHandler(), list[tuple[str, int]]()

    def on_shown(name: str, piece: int) -> memoryview:
        asked.append((name, piece))
        return memoryview(b"parts")

    assert handler.on_piece("shard:ab:0", 2) is None, "in no group yet"
    group: Any = SimpleNamespace(on_shown=on_shown)
    handler.register(group=group)
    assert handler.on_piece("shard:ab:0", 2) == b"parts"
    assert handler.on_piece("fragment:0:ab", 0) is None
    assert asked == [("shard:ab:0", 2)]


def test_a_service_that_nobody_registered_has_nothing_yet() -> None:
    """A joiner answers every call, including calls to services that it has not created yet."""
    handler, caller = RequestHandler(), PeerId("caller")
    offer = Offer(RoundKey(0, 0))
    assert handler.on_offer(caller, offer).verdict is Verdict.REFUSED
    assert handler.on_swap(caller, RoundKey(0, 0)).verdict is Verdict.REFUSED
    assert handler.on_manifest() is handler.on_state() is handler.group is None
    assert handler.on_artifacts([b"a", b"b"]) == [False, False]
    assert handler.on_amendments(0, b"") == handler.on_papers([]) == handler.on_peers(caller, b"") == []
    assert handler.on_vouch(caller) == (None, None)
    assert handler.on_summary(caller, "block", b"") == "unwanted"
    answer = Answer(Verdict.LOCKED)
    pairs: Any = SimpleNamespace(on_offer=lambda sender, offer: answer)
    handler.register(matchmaker=pairs)
    assert handler.on_offer(caller, offer) is answer
    assert handler.on_manifest() is None, "the other services are as before"
