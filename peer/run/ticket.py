"""A ticket: run id and addresses in one word that survives shells, URL hosts and upper case. It holds nothing secret.

    base32( version 1 | run id, 32 bytes | number of addresses | addresses | checksum, 4 bytes ), lower case, unpadded

It begins with the letters `peer`: the version's first bytes are chosen so."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from dataclasses import dataclass

from peer.errors import TicketError
from peer.identity import peer_id_of, public_key_of

MAX_ADDRESSES = 16
MAX_CHARACTERS = 4096
_MAGIC = base64.b32decode("PEERSWRM")[:4] + b"\x01"
_KINDS = {"ip4": 1, "ip6": 2, "dns4": 3, "dns6": 4}
_NAMES = {number: name for name, number in _KINDS.items()}
_FIX = "Copy the whole ticket again; it is one word without spaces."


@dataclass(frozen=True, slots=True)
class Ticket:
    """`addresses` are multiaddrs like /ip4/203.0.113.7/tcp/4810/p2p/12D3Koo…, of at least one bootstrap node."""

    run_id: bytes
    addresses: tuple[str, ...]

    def encode(self) -> str:
        assert len(self.run_id) == 32
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            raise TicketError(f"a ticket holds 1 to {MAX_ADDRESSES} addresses, not {len(self.addresses)}")
        body = _MAGIC + self.run_id + bytes([len(self.addresses)])
        body += b"".join(_pack(address) for address in self.addresses)
        return base64.b32encode(body + _checksum(body)).decode().rstrip("=").lower()

    @classmethod
    def decode(cls, text: str) -> Ticket:
        """Case and white space do not matter. Raises TicketError saying what is wrong with it."""
        raw = _from_base32("".join(text[: 2 * MAX_CHARACTERS].split()))
        if raw[:4] != _MAGIC[:4]:
            raise TicketError("this is not a ticket", _FIX)
        if len(raw) >= 5 and raw[4] > _MAGIC[4]:
            raise TicketError("the ticket was made by a newer peer", "Update this program: pip install -U peer-swarm")
        body, checksum = raw[:-4], raw[-4:]
        if len(body) < len(_MAGIC) + 33:
            raise TicketError("the ticket is truncated", _FIX)
        if _checksum(body) != checksum:
            raise TicketError("the ticket is truncated or mistyped: its checksum does not match", _FIX)
        return cls(body[5:37], _unpack_all(body[38:], body[37]))


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"peer ticket\0" + body).digest()[:4]


def _from_base32(word: str) -> bytes:
    if not word or len(word) > MAX_CHARACTERS:
        raise TicketError(f"a ticket has 1 to {MAX_CHARACTERS} characters, this has {len(word)}", _FIX)
    try:
        raw = base64.b32decode(word.upper() + "=" * (-len(word) % 8))
    except ValueError:
        raise TicketError("the ticket is truncated or mistyped: it is not base32 (a-z, 2-7)", _FIX) from None
    if base64.b32encode(raw).decode().rstrip("=") != word.upper():
        raise TicketError("the ticket is truncated or mistyped at its end", _FIX)
    return raw


def _pack(address: str) -> bytes:
    parts = address.split("/")
    try:
        empty, kind, host, transport, port, p2p, peer_id = parts
        if (empty, transport, p2p) != ("", "tcp", "p2p") or not 0 < int(port) < 65536:
            raise ValueError("expected /ip4|ip6|dns4|dns6/HOST/tcp/PORT/p2p/PEER")
        where = _pack_host(kind, host)
        return bytes([_KINDS[kind], len(where)]) + where + int(port).to_bytes(2, "big") + public_key_of(peer_id)
    except (ValueError, KeyError) as error:
        raise TicketError(
            f"cannot put the address {address!r} into a ticket: {error}",
            "An address looks like /ip4/203.0.113.7/tcp/4810/p2p/12D3Koo….",
        ) from None


def _pack_host(kind: str, host: str) -> bytes:
    if kind in ("ip4", "ip6"):
        packed = ipaddress.ip_address(host).packed
        if len(packed) != (4 if kind == "ip4" else 16):
            raise ValueError(f"{host} is not of kind {kind}")
        return packed
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
        addresses.append(f"/{_NAMES[raw[0]]}/{_unpack_host(raw[0], host)}/tcp/{port}/p2p/{peer_id_of(key)}")
        raw = rest[34:]
    if raw:
        raise TicketError("the ticket has bytes after its end", _FIX)
    return tuple(addresses)


def _unpack_host(kind: int, host: bytes) -> str:
    try:
        if kind in (1, 2):
            return str(ipaddress.ip_address(host))
        name = host.decode("ascii")
        _pack_host(_NAMES[kind], name)
    except ValueError:
        raise TicketError("the ticket's addresses cannot be read", _FIX) from None
    return name
