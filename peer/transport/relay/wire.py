"""The plaintext bytes at the start of a circuit, before TLS.

Each end of a circuit connects to the relay's exchange port and sends a preamble: a mark and its slip. The mark's first
byte cannot start a TLS record, so the accepting front can distinguish the two. When both ends have connected, the relay
sends each the address from which it sees the other. From then on it forwards what either sends.

The caller first sends whether it wants to punch: `PUNCH` and a nonce, or `CARRY`. After `PUNCH` the target agrees or
declines, and both try to connect. On a punched connection the caller sends the nonce and the target echoes it. Finally
the caller decides: `CARRY` over the relay, or `PUNCHED` over the punched connection, on which TLS then starts."""

from __future__ import annotations

import asyncio

from peer.errors import PartnerLost

MARK = b"\x00peer relay 1\x00\x00\x00"
"""First bytes of a preamble. No TLS record begins with the first of them."""
SLIP_BYTES = 16
PREAMBLE_BYTES = len(MARK) + SLIP_BYTES
NONCE_BYTES = 16
MAX_ADDRESS = 64
CARRY, PUNCH, AGREED, DECLINED, PUNCHED = b"C", b"P", b"A", b"D", b"G"
STEP_S = 3.0
"""Timeout of one step of the negotiation in seconds. A relay that takes longer is too slow."""


def preamble(slip: bytes) -> bytes:
    """Encode the preamble of one end."""
    assert len(slip) == SLIP_BYTES
    return MARK + slip


def decode_preamble(preamble: bytes) -> bytes | None:
    """Return the slip in a complete preamble; None: it is invalid."""
    marked = len(preamble) == PREAMBLE_BYTES and preamble.startswith(MARK)
    return preamble[len(MARK) :] if marked else None


def encode_address(address: str) -> bytes:
    """Encode the address of the other end, in gRPC's notation; empty where it is not to be disclosed."""
    raw = address.encode()[:MAX_ADDRESS]
    return len(raw).to_bytes(1, "big") + raw


async def read_address(reader: asyncio.StreamReader, timeout_s: float) -> str:
    """Read the address of the other end, which arrives when both ends have connected.

    Raises PartnerLost when the relay closes the connection, or sends nothing in time."""
    size = await read_exactly(reader, 1, timeout_s)
    raw = await read_exactly(reader, min(size[0], MAX_ADDRESS), STEP_S)
    return raw.decode("ascii", "replace")


async def read_exactly(reader: asyncio.StreamReader, nbytes: int, timeout_s: float) -> bytes:
    """Read exactly `nbytes`. Raises PartnerLost when they do not arrive in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reader.readexactly(nbytes)
    except TimeoutError:
        raise PartnerLost(f"the relay passed nothing on within {timeout_s:.0f} s") from None
    except (asyncio.IncompleteReadError, OSError):
        raise PartnerLost("the relay hung up") from None
