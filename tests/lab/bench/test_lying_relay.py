"""The box in front of a relay corrupts only circuits, and only after `begin`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from benchmarks.lying_relay import DROP_AFTER, TLS, LyingBox
from benchmarks.nat_network import home_site, inside, internet, open_site, why_not

pytestmark = pytest.mark.processes

RELAY, PORT = open_site("relay", 1), 4811
HOME = "home1/192.168.7.2"
SENT = bytes(2 * DROP_AFTER)
PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def network() -> Iterator[dict[str, str]]:
    if reason := why_not():
        pytest.skip(reason)
    with internet([RELAY, home_site(1, homes=2)]) as made:
        yield made


async def echoed(network: dict[str, str], lie: str, first: bytes, *, lying: bool = True) -> tuple[bytes, list[str]]:
    """Send `first` from a home through the box to an echo server at the relay. Return the reply, and the callers that
    the server saw."""
    callers = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer.get_extra_info("peername")[0])
        while chunk := await reader.read(2**16):
            writer.write(chunk)
        writer.close()

    with inside(network["relay"]):
        listening = socket.create_server(("0.0.0.0", PORT))
    server, box = await asyncio.start_server(echo, sock=listening), LyingBox(lie)
    try:
        async with box.beside(network["relay"], RELAY.public, PORT), asyncio.timeout(PATIENCE_S):
            if lying:
                box.begin()
            with inside(network[HOME]):
                calling = socket.socket()
            calling.setblocking(False)
            await asyncio.get_running_loop().sock_connect(calling, (RELAY.public, PORT))
            reader, writer = await asyncio.open_connection(sock=calling)
            writer.write(first + SENT)
            try:
                return await reader.readexactly(len(first + SENT)), callers
            except (asyncio.IncompleteReadError, OSError):
                return b"", callers
            finally:
                writer.transport.abort()
    finally:
        server.close()


@pytest.mark.parametrize(("first", "lying"), [(TLS, True), (b"\0circuit", False)])
def test_tls_passes_and_so_does_a_circuit_before_the_lie(network: dict[str, str], first: bytes, lying: bool) -> None:
    back, callers = asyncio.run(echoed(network, "drop", first, lying=lying))
    assert (back, callers) == (first + SENT, ["60.1.0.1"])


def test_a_circuit_is_dropped(network: dict[str, str]) -> None:
    assert asyncio.run(echoed(network, "drop", b"\0circuit"))[0] == b""


def test_bits_of_a_circuit_are_flipped(network: dict[str, str]) -> None:
    back, _ = asyncio.run(echoed(network, "flip", b"\0circuit"))
    assert len(back) == len(b"\0circuit" + SENT)
    assert back != b"\0circuit" + SENT
