"""Tickets: run id and addresses in one string, which shells, URLs and upper case do not damage. A ticket is not secret.

    base32( magic, 4 bytes | version, 1 | run id, 32 | number of addresses, 1 | addresses | checksum, 4 )
    address: kind, 1 | length of host, 1 | host | port, 2 | public key, 32

The string is in lower case, without padding. The magic makes every ticket begin with `peersw`. The checksum is the
beginning of a SHA-256 digest."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import math
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from peer.errors import TicketError
from peer.identity import peer_id_of, public_key_of
from peer.run.pasted import MOST_STARTS, Pasted, characters_of, given_text, token_at

MAX_ADDRESSES = 16
MAX_CHARACTERS = 8192
"""Sixteen addresses with the longest host names need 7466 characters."""
_MAGIC = base64.b32decode("PEERSWRM")[:4]
_VERSION = 1
_HEAD = len(_MAGIC) + 1 + 32 + 1
_CHECKSUM = 4
_KINDS = {"ip4": 1, "ip6": 2, "dns4": 3, "dns6": 4}
_NAMES = {number: name for name, number in _KINDS.items()}
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_FIX = "Copy the complete ticket again. It is one string without spaces."
_BEGINS = "peersw"
_START = re.compile(_BEGINS, re.ASCII | re.IGNORECASE)
_BEFORE = " \t\r\n\"'`“”‘’<>()[]*_|=:"
"""Characters that may precede a mistyped ticket. A slash is not among them, because a path is no ticket."""
_FORM = "expected /ip4|ip6|dns4|dns6/HOST/tcp/PORT/p2p/PEER"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The address of a run: its id and the addresses of bootstrap nodes, encoded in one string.

    `addresses`: multiaddrs like /ip4/203.0.113.7/tcp/4810/p2p/12D3Koo…, of at least one bootstrap node."""

    run_id: bytes
    addresses: tuple[str, ...]

    def encode(self) -> str:
        """Encode the ticket. Raises TicketError for an address that cannot be encoded, and for none or too many
        addresses."""
        assert len(self.run_id) == 32
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            raise TicketError(
                f"a ticket holds 1 to {MAX_ADDRESSES} addresses, not {len(self.addresses)}",
                "Name each with --initial-peers /ip4/…/tcp/…/p2p/….",
            )
        body = _MAGIC + bytes([_VERSION]) + self.run_id + bytes([len(self.addresses)])
        body += b"".join(_pack(address) for address in self.addresses)
        return _to_base32(body + _checksum(body))

    @classmethod
    def named(cls, argument: str) -> Ticket:
        """Read the argument of a command: a ticket, a pasted `peer join` line, or `@FILE` with either in it. Raises
        TicketError."""
        text = given_text(argument, 2 * MAX_CHARACTERS, "a ticket")
        found = ticket_in(text)
        if found is None and _is_file(argument):
            raise TicketError(f"{argument[:200]!r} is a file, not a ticket", f"Write @{argument} for the ticket in it.")
        return cls.decode(text if found is None else found.token)

    @classmethod
    def decode(cls, text: str) -> Ticket:
        """Decode a ticket, ignoring case and white space. Raises TicketError, which says what is wrong with it."""
        word = "".join(text[: 2 * MAX_CHARACTERS].split()).lower()
        raw = _from_base32(word)
        if raw[: len(_MAGIC)] != _MAGIC[: len(raw)] or len(raw) < len(_MAGIC):
            if word.startswith(_BEGINS):
                wrong = f"mistyped: none begins with {word[:7]}" if len(raw) >= len(_MAGIC) else "truncated"
                raise TicketError(f"the ticket is {wrong}", _FIX)
            raise TicketError("this is not a ticket: tickets begin with peersw", _FIX)
        version = raw[len(_MAGIC)] if len(raw) > len(_MAGIC) else _VERSION
        if version > _VERSION:
            raise TicketError("the ticket was made by a newer peer", "Update this program: peer help install update")
        if len(raw) < _length(raw):
            raise TicketError(
                f"the ticket is truncated (or mistyped): more must come after its {len(word)} characters", _FIX
            )
        body, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
        if version != _VERSION or _checksum(body) != checksum or _to_base32(raw) != word:
            raise TicketError("the ticket is mistyped: its checksum does not match", _FIX)
        return cls(body[5:37], _unpack_all(body[_HEAD:], body[_HEAD - 1]))


def ticket_in(text: str) -> Pasted | None:
    """Find a ticket in a pasted text, which must be `cleaned`. None: nothing in it looks like a ticket.

    Returns the first valid ticket, or else the first word that begins as tickets do."""
    first = None
    for start in islice(_START.finditer(text), MOST_STARTS):
        found = token_at(text, start.start(), _characters)
        with contextlib.suppress(TicketError):
            Ticket.decode(found.token)
            return found
        if first is None and (start.start() == 0 or text[start.start() - 1] in _BEFORE):
            first = found
    return first


def _characters(word: str) -> float:
    """Return the number of characters of a ticket that begins with these. Infinite: none does."""
    try:
        return characters_of(_length(_from_base32(word)))
    except TicketError:
        return math.inf


def text_after_ticket(argument: str) -> str:
    """Return the text after a pasted ticket, which `Ticket.named` ignores."""
    found = None if argument.startswith("@") else ticket_in(given_text(argument, 2 * MAX_CHARACTERS, "a ticket"))
    return "" if found is None else found.rest


def ticket_summary(ticket: Ticket) -> str:
    """Return the run and the number of addresses of a ticket, for a person. The run is named as its folder in a
    home."""
    entries = len(ticket.addresses)
    named = f", with {entries} entr{'y' if entries == 1 else 'ies'} to it" if entries else ""
    return f"run {ticket.run_id.hex()[:16]}{named}"


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # the name is too long or contains a NUL
        return False


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"peer ticket\0" + body).digest()[:_CHECKSUM]


def _to_base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _from_base32(word: str) -> bytes:
    """Decode the complete bytes of a string of any length. The caller checks the remaining bits of the last
    character."""
    if not word or len(word) > MAX_CHARACTERS:
        raise TicketError(f"a ticket has 1 to {MAX_CHARACTERS} characters, this has {len(word)}", _FIX)
    if strange := sorted(set(word) - _ALPHABET):
        raise TicketError(
            f"this is not a ticket, or it is mistyped: {strange[0]!r} is in none (only a-z, 2-7 are)", _FIX
        )
    return base64.b32decode(word.upper() + "A" * (-len(word) % 8))[: len(word) * 5 // 8]


def _length(raw: bytes) -> int:
    """Return the smallest length in bytes of a ticket that begins with `raw`, as far as the lengths in it can be
    read."""
    if len(raw) < _HEAD:
        return _HEAD + _CHECKSUM
    at = _HEAD
    for _ in range(min(raw[_HEAD - 1], MAX_ADDRESSES)):
        if len(raw) < at + 2:
            return at + 2
        at += 2 + raw[at + 1] + 2 + 32
    return at + _CHECKSUM


def _pack(address: str) -> bytes:
    try:
        parts = address.split("/")
        if len(parts) != 7 or (parts[0], parts[3], parts[5]) != ("", "tcp", "p2p") or parts[1] not in _KINDS:
            raise ValueError(_FORM)
        _, kind, host, _, port, _, peer_id = parts
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
            raise ValueError(f"{port!r} is no port")
        where = _pack_host(kind, host)
        return bytes([_KINDS[kind], len(where)]) + where + int(port).to_bytes(2, "big") + public_key_of(peer_id)
    except ValueError as error:
        raise TicketError(
            f"cannot put the address {address[:300]!r} into a ticket: {error}",
            "An address looks like /ip4/203.0.113.7/tcp/4810/p2p/12D3Koo….",
        ) from None


def _pack_host(kind: str, host: str) -> bytes:
    if kind == "ip4":
        return ipaddress.IPv4Address(host).packed
    if kind == "ip6":
        if "%" in host:
            raise ValueError("an address with a zone means something on one machine only")
        return ipaddress.IPv6Address(host).packed
    if not host.isascii() or not 1 <= len(host) <= 253 or not host.replace("-", "a").replace(".", "a").isalnum():
        raise ValueError(f"{host!r} is no host name")
    return host.encode()


def _unpack_all(raw: bytes, count: int) -> tuple[str, ...]:
    if not 1 <= count <= MAX_ADDRESSES:
        raise TicketError(f"the ticket claims {count} addresses", _FIX)
    addresses = []
    for _ in range(count):
        if len(raw) < 2 or len(raw) < 2 + raw[1] + 34 or raw[0] not in _NAMES:
            raise TicketError("the ticket's addresses cannot be read", _FIX)
        host, rest = raw[2 : 2 + raw[1]], raw[2 + raw[1] :]
        port, key = int.from_bytes(rest[:2], "big"), rest[2:34]
        if port == 0:
            raise TicketError("the ticket's addresses cannot be read", _FIX)
        addresses.append(f"/{_NAMES[raw[0]]}/{_unpack_host(raw[0], host)}/tcp/{port}/p2p/{peer_id_of(key)}")
        raw = rest[34:]
    if raw:
        raise TicketError("the ticket has bytes after its end", _FIX)
    return tuple(addresses)


def _unpack_host(kind: int, host: bytes) -> str:
    try:
        if kind in (1, 2):
            return str(ipaddress.IPv4Address(host) if kind == 1 else ipaddress.IPv6Address(host))
        name = host.decode("ascii")
        _pack_host(_NAMES[kind], name)
    except ValueError:
        raise TicketError("the ticket's addresses cannot be read", _FIX) from None
    return name
