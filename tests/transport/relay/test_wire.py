"""The plaintext bytes at the start of a circuit."""

from __future__ import annotations

import asyncio

import pytest

from peer.errors import PartnerLost
from peer.transport.relay.caller import seen_endpoint
from peer.transport.relay.wire import (
    MARK,
    MAX_ADDRESS,
    PREAMBLE_BYTES,
    SLIP_BYTES,
    STEP_S,
    decode_preamble,
    encode_address,
    preamble,
    read_address,
    read_exactly,
)
from tests.support.memory_streams import connection, run_streams

SLIP = bytes(range(SLIP_BYTES))


def test_a_preamble_is_a_mark_and_a_slip_and_nothing_else_is_one() -> None:
    assert decode_preamble(preamble(SLIP)) == SLIP
    assert len(preamble(SLIP)) == PREAMBLE_BYTES
    for wrong in (b"", MARK, preamble(SLIP)[:-1], preamble(SLIP) + b"\0", b"\1" + preamble(SLIP)[1:]):
        assert decode_preamble(wrong) is None


def test_no_tls_and_no_http_begins_like_a_mark() -> None:
    for begin in (b"\x16\x03\x01", b"PRI * HTTP/2.0", b"GET / HTTP/1.1"):
        assert not begin.startswith(MARK[:1])


@pytest.mark.parametrize(
    "address",
    ["ipv4:192.0.2.7:55312", "ipv6:%5B2001:db8:1234:5678:9abc:def0:1234:5678%5D:55312", ""],
)
def test_the_address_of_the_other_end_comes_as_it_was_told(address: str) -> None:
    async def main() -> None:
        relay, end = connection()
        relay.send(encode_address(address) + b"and TLS")
        assert await read_address(end.reader, STEP_S) == address
        assert await end.reader.readexactly(7) == b"and TLS"

    run_streams(main())


@pytest.mark.parametrize("told", [b"\xff" * 200, b"\x05\xff\xfe\xfd\x00\n", b"\x07ipv4:::", b"\x40" + b"9" * 64])
def test_whatever_a_relay_tells_is_bounded_and_no_address(told: bytes) -> None:
    async def main() -> None:
        relay, end = connection()
        relay.send(told)
        relay.writer.write_eof()
        found = await read_address(end.reader, STEP_S)
        assert len(found) <= MAX_ADDRESS
        assert seen_endpoint(found) == ""

    run_streams(main())


@pytest.mark.parametrize("told", [b"", b"\x14ipv4:192"])
def test_a_relay_that_hangs_up_or_falls_silent_is_lost(told: bytes) -> None:
    async def main() -> None:
        for hangs_up in (True, False):
            relay, end = connection()
            relay.send(told)
            if hangs_up:
                relay.close()
            began = asyncio.get_running_loop().time()
            with pytest.raises(PartnerLost, match="hung up" if hangs_up else "within 3 s"):
                await read_address(end.reader, STEP_S)
            assert asyncio.get_running_loop().time() == began + (0 if hangs_up else STEP_S)

    run_streams(main())


def test_a_reset_is_a_hang_up() -> None:
    async def main() -> None:
        relay, end = connection()
        relay.abort()
        with pytest.raises(PartnerLost, match="hung up"):
            await read_exactly(end.reader, 1, STEP_S)

    run_streams(main())


@pytest.mark.parametrize(
    ("seen_as", "endpoint"),
    [
        ("ipv4:192.0.2.7:55312", "192.0.2.7:55312"),
        ("ipv6:%5B2001:db8::7%5D:55312", "[2001:db8::7]:55312"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:55312", "192.0.2.7:55312"),
        ("ipv4:192.0.2.7:0", ""),
        ("ipv4:192.0.2.7:65536", ""),
        ("ipv4:192.0.2.7:99999999999999999999", ""),
        ("ipv4:a.name.example:80", ""),
        ("relay:12D3KooW", ""),
        ("unix:/run/peer", ""),
    ],
)
def test_only_an_ip_address_and_a_port_are_punched_to(seen_as: str, endpoint: str) -> None:
    assert seen_endpoint(seen_as) == endpoint
