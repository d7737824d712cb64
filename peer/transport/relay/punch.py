"""Hole punching by TCP simultaneous open: both ends connect at the same moment, each through its own router (RFC 5128,
section 3.4).

Each end connects from the port of its connection to the relay. A router that uses one mapping per port then shows the
other end the same address as the relay saw. The first packet of each end opens its own router for the other end."""

from __future__ import annotations

import asyncio
import os
import socket

from peer.errors import PartnerLost
from peer.protocol.endpoints import join_host
from peer.transport.relay.pipe import Stream

PUNCH_S = 2.0
"""Seconds to open a punched connection. After that the relay is used."""


def reusable(family: int, host: str = "", port: int = 0) -> socket.socket:
    """Return an unconnected socket whose port another connection may share. Raises OSError."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


async def connected(host: str, port: int, timeout_s: float) -> Stream:
    """Connect to a host from a port from which punching is possible later. Raises PartnerLost."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = reusable(family)
        async with asyncio.timeout(timeout_s):
            return await _stream(made, (host, port))
    except TimeoutError:
        raise PartnerLost(f"{join_host(host, port)} did not answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise PartnerLost(f"{join_host(host, port)}: {_message(error)}") from None


async def punched(through: Stream, host: str, port: int, attempts: int) -> Stream | None:
    """Connect to `host` from the local port of `through`, while the other end does the same.

    The caller bounds the time. A refused connection is retried at once, because the other end may not have sent its
    first packet yet, and two ends that both pause can keep missing each other. Each attempt sends one packet. Return
    None when all `attempts` were refused. Raises PartnerLost when no socket can be created, or when the ends use
    different IP versions."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = through.writer.get_extra_info("sockname")
    if through.writer.get_extra_info("socket").family != family:
        raise PartnerLost("the two ends are seen over different versions of IP")
    for _ in range(attempts):
        try:
            return await _stream(reusable(family, own[0], own[1]), (host, port))
        except ConnectionRefusedError:
            continue
        except OSError as error:
            raise PartnerLost(f"no punched connection: {_message(error)}") from None
    return None


def _message(error: OSError) -> str:
    """Return the error's message for a person. asyncio replaces the system's message by an address, so it is looked up
    again."""
    return str(error) if error.errno is None else os.strerror(error.errno)


async def _stream(made: socket.socket, to: tuple[str, int]) -> Stream:
    """Connect a socket and return its stream. Closes the socket on failure."""
    try:
        await asyncio.get_running_loop().sock_connect(made, to)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Stream.of(*await asyncio.open_connection(sock=made))
    except BaseException:
        made.close()
        raise
