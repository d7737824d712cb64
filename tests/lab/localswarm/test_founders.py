from __future__ import annotations

import pytest

from peer.lab.localswarm.plan import with_founders
from peer.run.manifest import default_text, derive, parse_manifest


@pytest.mark.parametrize(
    ("settings", "peers", "founders"),
    [
        (["sync.preset=diloco"], 4, 4),
        (["sync.preset=streaming-diloco"], 8, 8),
        (["sync.preset=diloco", "sync.founders=2"], 4, 2),
        (["sync.preset=diloco"], 17, None),
        (["sync.preset=noloco"], 4, None),
    ],
)
def test_a_swarms_peers_begin_its_group_together(settings: list[str], peers: int, founders: int | None) -> None:
    text = with_founders(derive(default_text(), settings), peers)
    assert parse_manifest(text.encode()).sync.founders == founders
