"""Tests of the summaries that a node stores: no replay, no flood, and no place lost to strangers' keys."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.summary.book import FORGOTTEN_S, PER_PEER, RATE, STALE, SummaryBook
from tests.support.summaries import NOW, summary_of


def hold(book: SummaryBook, name: str, block: str, at: float = NOW, signers: Iterable[str] = ()) -> str:
    return book.take(summary_of(PeerId(name), at), block, at, map(PeerId, signers))


def names(book: SummaryBook) -> set[str]:
    return {held.summary.peer_id for held in book}


def test_a_replay_an_older_one_and_one_of_another_time_are_stale() -> None:
    book = SummaryBook()
    assert hold(book, "a", "home") == ""
    assert hold(book, "a", "home") == STALE
    assert book.take(summary_of(PeerId("a"), NOW - 5), "home", NOW) == STALE
    assert book.take(summary_of(PeerId("b"), NOW - 3600), "home", NOW) == STALE
    assert book.take(summary_of(PeerId("b"), NOW + 3600), "home", NOW) == STALE
    assert hold(book, "a", "home", NOW + 60) == ""
    assert book.dropped[STALE] == 4


def test_a_key_is_heard_once_a_minute_after_a_few_at_once() -> None:
    book = SummaryBook()
    heard = [book.refusal_reason(PeerId("a"), "home", NOW) for _ in range(20)]
    assert heard.count("") == PER_PEER.burst
    assert book.dropped[RATE] == 20 - PER_PEER.burst
    assert [book.refusal_reason(PeerId("a"), "home", NOW + 60 * n) for n in range(1, 20)] == [""] * 19


def test_many_keys_of_one_block_are_heard_at_the_rate_of_a_block() -> None:
    book = SummaryBook()
    heard = [book.refusal_reason(PeerId(f"key {n}"), "block", NOW) for n in range(1000)]
    assert heard.count("") == 256
    assert book.refusal_reason(PeerId("a"), "home", NOW) == ""


def test_free_keys_of_a_block_push_nobody_out() -> None:
    book = SummaryBook(places=32, reserve=8)
    homes = [f"home {n}" for n in range(6)]
    for home in homes[:3]:
        assert hold(book, home, home) == ""
    for n in range(1000):
        hold(book, f"key {n}", "block")
    for home in homes[3:]:
        assert hold(book, home, home) == ""
    assert hold(book, "partners signed for it", "block", signers=homes[:2]) == ""
    assert len(book) <= 32
    assert {*homes, "partners signed for it"} <= names(book)


def test_those_that_partners_signed_for_keep_their_places_against_many_blocks() -> None:
    book = SummaryBook(places=32, reserve=8)
    for n in range(8):
        assert hold(book, f"known {n}", f"home {n}") == ""
    for n in range(8):
        assert hold(book, f"known {n}", f"home {n}", NOW + 1, [f"known {(n + m) % 8}" for m in (1, 2)]) == ""
    for n in range(1000):
        hold(book, f"key {n}", f"rented {n}")
    assert {f"known {n}" for n in range(8)} <= names(book)


def test_keys_of_one_block_make_each_other_known_to_nobody() -> None:
    book = SummaryBook(places=32, reserve=8)
    for again in range(3):
        for n in range(64):
            hold(book, f"key {n}", "block", NOW + again, [f"key {m}" for m in range(64)])
    assert [hold(book, f"home {n}", f"home {n}", NOW + 3) for n in range(20)] == [""] * 20


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_keys_of_some_blocks_that_sign_for_each_other_leave_places_to_newcomers(blocks: int) -> None:
    book = SummaryBook(places=128, reserve=32)
    keys = [f"key {n}" for n in range(160)]
    for again in range(3):
        for n, key in enumerate(keys):
            hold(book, key, f"rented {n % blocks}", NOW + again, keys)
    assert hold(book, "newcomer", "home", NOW + 3) == ""
    assert hold(book, "another", "other home", NOW + 3) == ""
    assert {"newcomer", "another"} <= names(book)


def test_a_signer_that_is_not_heard_itself_counts_for_nothing() -> None:
    book = SummaryBook(places=4, reserve=1)
    for again in range(2):
        for name in "abc":
            assert hold(book, name, "block", NOW + again, ["invented 1", "invented 2", "a"]) == ""
    assert hold(book, "newcomer", "home", NOW + 1) == ""


def test_those_that_are_shown_first_are_of_many_blocks() -> None:
    book = SummaryBook()
    for n in range(300):
        hold(book, f"a{n:03}", "block")
    for n in range(5):
        hold(book, f"z home {n}", f"home {n}")
    assert {f"z home {n}" for n in range(5)} <= {one.summary.peer_id for one in book.in_turn()[:6]}
    assert len(book.in_turn()) == len(book)


def test_who_is_silent_for_an_hour_is_forgotten() -> None:
    book = SummaryBook()
    hold(book, "a", "home")
    book.forget(NOW + FORGOTTEN_S + 1)
    assert len(book) == 0
