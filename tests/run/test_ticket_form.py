"""The error for an invalid ticket must say what is wrong: truncated, mistyped, newer, or no ticket. The encoding is
frozen."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import TicketError
from peer.identity import peer_id_of
from peer.run.ticket import MAX_ADDRESSES, MAX_CHARACTERS, Ticket

PEER = peer_id_of(bytes(range(32)))
TICKET = Ticket(
    b"r" * 32,
    tuple(f"/{host}/tcp/4810/p2p/{PEER}" for host in ("ip4/203.0.113.7", "ip6/2001:db8::1", "dns4/a.example")),
)
WORD = TICKET.encode()


def said(text: str) -> str:
    with pytest.raises(TicketError) as caught:
        Ticket.decode(text)
    return caught.value.found


def word_of(body: bytes) -> str:
    """Return a ticket with any body and a valid checksum."""
    checksum = hashlib.sha256(b"peer ticket\0" + body).digest()[:4]
    return base64.b32encode(body + checksum).decode().rstrip("=").lower()


def raw_of(word: str) -> bytes:
    return base64.b32decode(word.upper() + "=" * (-len(word) % 8))


def test_golden() -> None:
    one = Ticket(bytes(range(32)), (f"/ip4/203.0.113.7/tcp/4810/p2p/{PEER}",))
    assert one.encode() == (
        "peerswqbaaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypqcaiezmahcbysziaacaqdaqcqmbyi"
        "befawdanbyhraeiscmkbkfqxdamrugy4dupb6ccdqiva"
    )


@given(st.integers(8, len(WORD) - 1))
def test_a_ticket_cut_short_is_said_to_be_truncated(length: int) -> None:
    assert "truncated" in said(WORD[:length])


@given(st.integers(0, len(WORD) - 1), st.characters(codec="utf-8", exclude_categories=("Z", "C")))
def test_any_other_character_anywhere_is_noticed(place: int, letter: str) -> None:
    if letter.isascii() and letter.lower() == WORD[place]:
        return
    said(WORD[:place] + letter + WORD[place + 1 :])


@given(st.integers(60, len(WORD) - 1), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_one_character_more_is_noticed(place: int, letter: str) -> None:
    said(WORD[:place] + letter + WORD[place:])
    said(WORD + letter)


@given(st.integers(12, 58))
def test_a_changed_run_id_is_said_to_be_mistyped(place: int) -> None:
    assert "mistyped" in said(WORD[:place] + ("b" if WORD[place] == "a" else "a") + WORD[place + 1 :])


def test_look_alikes_of_other_alphabets_are_no_letters() -> None:
    assert WORD[4] == "s"
    assert "is in none" in said(WORD[:4] + "ſ" + WORD[5:])


def test_newer_and_foreign() -> None:
    raw = bytearray(raw_of(WORD)[:-4])
    raw[4] = 2
    assert "newer" in said(word_of(bytes(raw)))
    raw[4] = 0
    assert "mistyped" in said(word_of(bytes(raw)))
    assert "not a ticket" in said("abcdefgh" * 10)
    assert "not a ticket" in said("https://example.org/")
    assert "not a ticket" in said("peer")
    said("")
    said("a" * (MAX_CHARACTERS + 1))


HEAD = raw_of(WORD)[:37]
KEY = bytes(range(32))


@pytest.mark.parametrize(
    "addresses",
    [
        b"\x00",
        b"\x11" + (b"\x01\x04\x7f\0\0\x01\x12\xca" + KEY) * 17,
        b"\x01\x09\x04\x7f\0\0\x01\x12\xca" + KEY,
        b"\x01\x01\x03\x7f\0\0\x12\xca" + KEY,
        b"\x01\x01\x10" + bytes(16) + b"\x12\xca" + KEY,
        b"\x01\x01\x04\x7f\0\0\x01\0\0" + KEY,
        b"\x01\x03\x03a/b\x12\xca" + KEY,
        b"\x01\x03\x02\xff\xff\x12\xca" + KEY,
        b"\x01\x03\x00\x12\xca" + KEY,
        b"\x01\x01\x04\x7f\0\0\x01\x12\xca" + KEY + b"more",
    ],
    ids=["none", "17", "kind", "3 of ip4", "16 of ip4", "port 0", "slash", "not ascii", "no name", "more"],
)
def test_a_checksum_that_holds_does_not_make_nonsense_true(addresses: bytes) -> None:
    said(word_of(HEAD + addresses))


@given(st.binary(max_size=120))
def test_random_bytes_behind_a_checksum_that_holds_never_crash(body: bytes) -> None:
    try:
        again = Ticket.decode(word_of(HEAD + body))
    except TicketError:
        return
    assert Ticket.decode(again.encode()) == again


def test_the_longest_ticket_can_be_read_again() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    longest = Ticket(b"r" * 32, (f"/dns6/{name}/tcp/65535/p2p/{PEER}",) * MAX_ADDRESSES)
    assert Ticket.decode(longest.encode()) == longest
    with pytest.raises(TicketError, match="not 17"):
        Ticket(b"r" * 32, longest.addresses[:1] * (MAX_ADDRESSES + 1)).encode()


@pytest.mark.parametrize(
    "address", ["ip6/fe80::1%eth0/tcp/1", "ip4/1.2.3.4/tcp/+1", "ip4/1.2.3.4/tcp/٣", "ip4/1.2.3.4/tcp/0"]
)
def test_an_address_that_would_not_come_back_the_same_is_refused(address: str) -> None:
    with pytest.raises(TicketError, match="cannot put the address"):
        Ticket(b"r" * 32, (f"/{address}/p2p/{PEER}",)).encode()
