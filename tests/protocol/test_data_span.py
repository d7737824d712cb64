"""Places in the data survive the conversion to text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocol.data_span import MOST_TEXT, cursor_text, parse_cursor, parse_skips, skips_text
from peer.protocol.sampling import Cursor

cursors = st.builds(Cursor, st.integers(0, 3), st.integers(0, 6), st.integers(0, 3))


@given(cursors)
def test_a_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    assert parse_cursor(cursor_text(cursor)) == cursor


@given(st.lists(cursors, max_size=30))
def test_skips_are_read_as_they_were_written(skips: list[Cursor]) -> None:
    assert parse_skips(skips_text(skips)) == sorted(set(skips))


def test_neighbours_share_a_word() -> None:
    skips = [*(Cursor(0, place) for place in range(3, 8)), Cursor(0, 9, 512), Cursor(1, 0)]
    assert skips_text(skips) == "0.3-7 0.9@512 1.0"
    assert skips_text([]) == ""


def test_a_list_that_is_too_long_says_so_and_is_not_taken_for_whole() -> None:
    text = skips_text([Cursor(0, 2 * place) for place in range(1000)])
    assert len(text) <= MOST_TEXT + 2
    assert text.endswith(" …")
    with pytest.raises(ValueError, match="no list of skipped shards"):
        parse_skips(text)


@pytest.mark.parametrize("text", ["", "1.2", "a.b.c", "1.2.3.4", "-1.0.0", "1.2." + 19 * "9"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        parse_cursor(text)


@pytest.mark.parametrize("text", ["3", "0.3-", "0.0-99999999", "0.3@-1"])
def test_what_are_no_skips_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no list|too many"):
        parse_skips(text)
