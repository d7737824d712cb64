from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.transport.server.tokens import LIFETIME_S, TokenTable

ONE, OTHER = PeerId("one"), PeerId("other")


def test_a_token_names_its_owner_for_ten_minutes() -> None:
    table = TokenTable()
    token = table.issue(ONE, now=100.0)
    assert table.owner(token, 100.0) == ONE
    assert table.owner(token, 100.0 + LIFETIME_S - 1) == ONE
    assert table.owner(token, 100.0 + LIFETIME_S) is None
    assert table.owner(token, 100.0) is None


def test_all_tokens_run_out_at_once_and_stay_known() -> None:
    table = TokenTable()
    token = table.issue(ONE, now=100.0)
    table.expire()
    assert table.owner(token, 100.0) is None
    assert table.was_issued(token)
    assert table.owner(table.issue(ONE, now=100.0), 100.0) == ONE


def test_unknown_tokens_name_nobody() -> None:
    table = TokenTable()
    table.issue(ONE, 0.0)
    assert table.owner(b"", 0.0) is None
    assert table.owner(b"x" * 32, 0.0) is None


def test_the_table_is_bounded_and_keeps_what_is_used() -> None:
    table = TokenTable(limit=2)
    first, second = table.issue(ONE, 0.0), table.issue(OTHER, 0.0)
    assert table.owner(first, 1.0) == ONE
    third = table.issue(ONE, 2.0)
    assert [table.owner(token, 3.0) for token in (first, second, third)] == [ONE, None, ONE]
    assert len({first, second, third}) == 3
