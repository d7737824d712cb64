"""The newest summaries at a node: no replay, no flood, and no place that strangers' keys can take."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.summary.book import FORGOTTEN_S, PER_PEER, RATE, STALE, SummaryBook
from tests.support.summaries import NOW, summary_of


def hold(book: SummaryBook, name: str, block: str, at: float = NOW, *, known: bool = False) -> str:
    return book.take(summary_of(PeerId(name), at), block, at, known=known)


def names(book: SummaryBook) -> set[str]:
    return {held.summary.peer_id for held in book}


def test_a_replay_an_older_one_and_one_of_another_time_are_stale() -> None:
    book = SummaryBook()
    assert hold(book, "a", "home") == ""
    assert hold(book, "a", "home") == STALE
    assert book.take(summary_of(PeerId("a"), NOW - 5), "home", NOW, known=False) == STALE
    assert book.take(summary_of(PeerId("b"), NOW - 3600), "home", NOW, known=False) == STALE
    assert book.take(summary_of(PeerId("b"), NOW + 3600), "home", NOW, known=False) == STALE
    assert hold(book, "a", "home", NOW + 60) == ""
    assert book.dropped[STALE] == 4


def test_a_key_is_heard_once_a_minute_after_a_few_at_once() -> None:
    book = SummaryBook()
    heard = [book.why_not_heard(PeerId("a"), "home", NOW) for _ in range(20)]
    assert heard.count("") == PER_PEER.burst
    assert book.dropped[RATE] == 20 - PER_PEER.burst
    assert [book.why_not_heard(PeerId("a"), "home", NOW + 60 * n) for n in range(1, 20)] == [""] * 19


def test_many_keys_of_one_block_are_heard_at_the_rate_of_a_block() -> None:
    book = SummaryBook()
    heard = [book.why_not_heard(PeerId(f"key {n}"), "block", NOW) for n in range(1000)]
    assert heard.count("") == 256
    assert book.why_not_heard(PeerId("a"), "home", NOW) == ""


def test_free_keys_of_a_block_push_nobody_out() -> None:
    book = SummaryBook(places=32, reserve=8)
    homes = [f"home {n}" for n in range(6)]
    for home in homes[:3]:
        assert hold(book, home, home) == ""
    for n in range(1000):
        hold(book, f"key {n}", "block")
    for home in homes[3:]:
        assert hold(book, home, home) == ""
    assert hold(book, "partners signed for it", "block", known=True) == ""
    assert len(book) <= 32
    assert {*homes, "partners signed for it"} <= names(book)


def test_those_that_partners_signed_for_keep_their_places_against_many_blocks() -> None:
    book = SummaryBook(places=32, reserve=8)
    for n in range(8):
        assert hold(book, f"known {n}", f"home {n}", known=True) == ""
    for n in range(1000):
        hold(book, f"key {n}", f"rented {n}")
    assert {f"known {n}" for n in range(8)} <= names(book)


def test_who_is_silent_for_an_hour_is_forgotten_but_its_tokens_count_once() -> None:
    book = SummaryBook()
    hold(book, "a", "home")
    book.forget(NOW + FORGOTTEN_S + 1)
    assert len(book) == 0
    assert book.tokens_of_gone() == {"a": 1000}
    hold(book, "a", "home", NOW + FORGOTTEN_S + 10)
    assert book.tokens_of_gone() == {}
