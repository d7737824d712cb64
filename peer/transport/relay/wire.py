"""The plain bytes at the beginning of a circuit, before TLS.

An end of a circuit opens a connection to the relay's exchange port and sends a preamble: a mark, and its slip. TLS
begins with another byte, so the accepting front can tell the two apart. Once both ends are there, the relay tells each
the address that it sees of the other. From then on it passes on what either sends.

The caller says first whether it wants to punch: `PUNCH` and a nonce, or `CARRY`. After `PUNCH` the target agrees or
declines, and both try to connect. On a punched connection the caller sends the nonce and the target sends it back. In
the end the caller decides: `CARRY` over the relay, or `PUNCHED` over the punched connection. TLS follows there."""

from __future__ import annotations

import asyncio

from peer.errors import PartnerLost

MARK = b"\x00peer relay 1\x00\x00\x00"
"""Its first byte begins no TLS record."""
SLIP_BYTES = 16
PREAMBLE_BYTES = len(MARK) + SLIP_BYTES
NONCE_BYTES = 16
MAX_ADDRESS = 64
CARRY, PUNCH, AGREED, DECLINED, PUNCHED = b"C", b"P", b"A", b"D", b"G"
STEP_S = 3.0
"""Seconds for one step of the negotiation: a relay that takes longer is slow."""


def preamble(slip: bytes) -> bytes:
    """Encode the preamble of one end."""
    assert len(slip) == SLIP_BYTES
    return MARK + slip


def decode_preamble(preamble: bytes) -> bytes | None:
    """Decode a complete preamble. None: it is none."""
    marked = len(preamble) == PREAMBLE_BYTES and preamble.startswith(MARK)
    return preamble[len(MARK) :] if marked else None


def encode_address(address: str) -> bytes:
    """Encode the address of the other end, as gRPC writes it; empty where it is nobody's business."""
    raw = address.encode()[:MAX_ADDRESS]
    return len(raw).to_bytes(1, "big") + raw


async def read_address(reader: asyncio.StreamReader, timeout_s: float) -> str:
    """Read the address of the other end, which comes when both ends are there.

    Raises PartnerLost when the relay hangs up, or tells nothing in time."""
    size = await read_exactly(reader, 1, timeout_s)
    raw = await read_exactly(reader, min(size[0], MAX_ADDRESS), STEP_S)
    return raw.decode("ascii", "replace")


async def read_exactly(reader: asyncio.StreamReader, nbytes: int, timeout_s: float) -> bytes:
    """Read so many bytes. Raises PartnerLost when they do not come in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reader.readexactly(nbytes)
    except TimeoutError:
        raise PartnerLost(f"the relay passed nothing on within {timeout_s:.0f} s") from None
    except (asyncio.IncompleteReadError, OSError):
        raise PartnerLost("the relay hung up") from None
