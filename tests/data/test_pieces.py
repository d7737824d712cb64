"""Long texts are cut where tokenizers split them, independent of the blocks in which they are read."""

from __future__ import annotations

import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.data import pieces as module
from peer.data.encoding import TextEncoder
from peer.data.pieces import pieces

texts = st.text("ab \n☃", max_size=300)


@given(st.lists(texts, max_size=6))
def test_pieces_make_the_text_and_do_not_depend_on_blocks(blocks: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 20)
        found = list(pieces(blocks))
        assert "".join(found) == "".join(blocks)
        assert all(0 < len(piece) <= 20 for piece in found)
        assert found == list(pieces(["".join(blocks)]))


def test_cuts_change_no_token_of_real_text(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(tokenize.__file__).read_text()
    monkeypatch.setattr(module, "PIECE", 500)
    cut = list(pieces([text]))
    assert len(cut) > 20
    parts = [token for tokens in encoder.encode(cut) for token in tokens.tolist()]
    assert parts == encoder.encode([text])[0].tolist()
