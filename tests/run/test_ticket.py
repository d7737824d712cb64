from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import TicketError
from peer.run.ticket import MAX_ADDRESSES, Ticket, text_after_ticket

PEER = "12D3KooWRvWgizyF4VPDNkpcjwBiCWfXMfZQzZWK5zSikVSJT3EW"
ALPHABET = string.ascii_lowercase + "234567"
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(lambda ip: f"/ip4/{ip}"),
    st.ip_addresses(v=6).map(lambda ip: f"/ip6/{ip}"),
    st.sampled_from(["/dns4/peer.example", "/dns6/a-b.c", "/dns4/x"]),
)
ADDRESSES = st.builds(lambda host, port: f"{host}/tcp/{port}/p2p/{PEER}", HOSTS, st.integers(1, 65535))


@given(st.binary(min_size=32, max_size=32), st.lists(ADDRESSES, min_size=1, max_size=MAX_ADDRESSES))
def test_round_trip_through_shells_hosts_and_upper_case(run_id: bytes, addresses: list[str]) -> None:
    ticket = Ticket(run_id, tuple(addresses))
    word = ticket.encode()
    assert set(word) <= set(ALPHABET)
    assert word.startswith("peer")
    assert Ticket.decode(word) == ticket
    assert Ticket.decode(f" {word[:30]}\n  {word[30:].upper()} ") == ticket


WORD = Ticket(b"r" * 32, (f"/ip4/127.0.0.1/tcp/4810/p2p/{PEER}",)).encode()


@given(st.integers(0, len(WORD) - 1), st.sampled_from(ALPHABET))
def test_every_changed_character_is_noticed(place: int, letter: str) -> None:
    changed = WORD[:place] + letter + WORD[place + 1 :]
    if changed != WORD:
        with pytest.raises(TicketError):
            Ticket.decode(changed)


@given(st.integers(0, len(WORD) - 1))
def test_every_truncation_is_noticed(length: int) -> None:
    with pytest.raises(TicketError):
        Ticket.decode(WORD[:length])


@given(st.text(max_size=400))
def test_any_text_is_a_ticket_or_a_ticket_error(text: str) -> None:
    try:
        Ticket.decode(text)
    except TicketError:
        return
    raise AssertionError("nobody guesses a checksum")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/ip4/127.0.0.1/tcp/1",
        f"/ip4/::1/tcp/1/p2p/{PEER}",
        f"/ip4/127.0.0.1/udp/1/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/70000/p2p/{PEER}",
        "/ip4/127.0.0.1/tcp/1/p2p/QmNobody",
        f"/dns4/sp ace/tcp/1/p2p/{PEER}",
    ],
)
def test_an_address_that_cannot_be_is_named(address: str) -> None:
    with pytest.raises(TicketError):
        Ticket(b"r" * 32, (address,)).encode()


def test_a_ticket_has_addresses() -> None:
    with pytest.raises(TicketError):
        Ticket(b"r" * 32, ()).encode()


def test_a_ticket_may_lie_in_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "ticket"
    kept.write_text(f"{WORD}\n")
    assert Ticket.named(f"@{kept}") == Ticket.named(WORD)
    kept.write_bytes(b"\xff" * 100_000)
    for unusable in (kept, tmp_path, tmp_path / "absent", "nu\0l"):
        with pytest.raises(TicketError):
            Ticket.named(f"@{unusable}")


@pytest.mark.parametrize(
    "pasted",
    [
        "peer join {}",
        "$ peer join {}",
        "peer-swarm join '{}'",
        '> peer join "{}" --max-upload 1MB --data ~/texts',
        "python -m peer join {} \\\n    --threads 2",
        "`peer join {}`",
        "peer join {} # the run of the reading group",
        "others join with:\n\n    peer join {}\n",
    ],
)
def test_a_pasted_line_is_understood(pasted: str, tmp_path: Path) -> None:
    kept = tmp_path / "ticket"
    for word in (WORD, WORD.upper(), f"{WORD[:40]}\n  {WORD[40:]}", f"{WORD[:40]}\\\n{WORD[40:]}"):
        kept.write_text(pasted.format(word))
        assert Ticket.named(pasted.format(word)) == Ticket.named(f"@{kept}") == Ticket.decode(WORD)


def lines(text: str) -> list[str]:
    return [text[at : at + 40] for at in range(0, len(text), 40)]


PASTED = {
    "byte order mark": "\ufeff" + WORD,
    "zero-width space": WORD[:50] + "\u200b" + WORD[50:] + "\u200b",
    "soft hyphen": WORD[:50] + "\u00ad" + WORD[50:],
    "no-break spaces": f"\u00a0{WORD}\u00a0",
    "direction marks": f"\u202a{WORD}\u202c",
    "full-width letter": WORD.replace("p", "\uff50", 1),
    "end of a sentence": f"Join with this: {WORD}. See you there",
    "comma": f"{WORD}, then wait",
    "bold": f"**{WORD}**",
    "spoiler": f"||{WORD}||",
    "code block": f"```\n{WORD}\n```",
    "html": f"<code>{WORD}</code>",
    "address": f"https://example.org/join?ticket={WORD}&x=1",
    "quoted-printable": "https://example.org/join?ticket=3D" + "=\r\n".join(lines(WORD)),
    "link": f"[join]({WORD})",
    "quoted mail": "\n".join(f"> > {line}" for line in lines(WORD)),
    "hyphenated": "-\n    ".join(lines(WORD)),
    "name of the program": f"uvx --from peerswarm peer join {WORD}",
}


@pytest.mark.parametrize("pasted", PASTED.values(), ids=PASTED)
def test_a_ticket_is_found_in_what_programs_make_of_it(pasted: str) -> None:
    assert Ticket.named(pasted) == Ticket.decode(WORD)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_of_any_unicode_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "ticket").write_bytes(f"{WORD}\r\n".encode(encoding))
    assert Ticket.named(f"@{tmp_path / 'ticket'}") == Ticket.decode(WORD)


@pytest.mark.parametrize(
    "pasted", [f"{WORD}a", f"**{WORD[:-9]}**", f"https://example.org/?t={WORD[:-1]}\u2026", f"{WORD[:60]}.{WORD[60:]}"]
)
def test_the_checksum_guards_what_is_pasted(pasted: str) -> None:
    with pytest.raises(TicketError, match=r"mistyped|truncated"):
        Ticket.named(pasted)


def test_what_stands_behind_a_ticket_is_reported() -> None:
    assert text_after_ticket(f"peer join {WORD} --data ~/texts") == "--data ~/texts"
    assert text_after_ticket(f"**{WORD}**.") == ""


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("peer join TICKET", "this is not a ticket: tickets begin with peersw"),
        ("peerswaaaa", "the ticket is mistyped: none begins with peerswa"),
        ("peersw", "the ticket is truncated"),
        (f"peer join {WORD[:-9]}", "truncated"),
        (f"peer join {WORD[:20]}1{WORD[21:]} --data texts", "'1' is in none"),
        (f"peer join {WORD[:20]}{'a' if WORD[20] != 'a' else 'b'}{WORD[21:]}", "its checksum does not match"),
    ],
)
def test_what_is_wrong_with_a_pasted_ticket_is_told(argument: str, told: str) -> None:
    with pytest.raises(TicketError, match=told):
        Ticket.named(argument)


def test_a_file_without_an_at_is_pointed_out(tmp_path: Path) -> None:
    kept = tmp_path / "ticket"
    kept.write_text(WORD)
    with pytest.raises(TicketError, match="is a file, not a ticket") as caught:
        Ticket.named(str(kept))
    assert f"@{kept}" in caught.value.fix
