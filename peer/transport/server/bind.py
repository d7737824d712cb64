"""Creates the listening sockets of a server."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from peer.errors import AddressError
from peer.protocol.endpoints import join_host


def listening(hosts: Sequence[str]) -> list[str]:
    """Return the hosts to bind, without duplicates. `::` also listens for IPv4, so no other host can be bound with
    it."""
    return ["::"] if "::" in hosts else list(dict.fromkeys(hosts))


def bind(hosts: Sequence[str], port: int) -> tuple[list[socket.socket], int]:
    """Return listening sockets on all hosts with the same port, and that port. Port 0 chooses a free one.

    Raises AddressError, with the cause, when the port is occupied or a host is not an address of this machine."""
    sockets = list[socket.socket]()
    try:
        for host in listening(hosts):
            sockets.append(_bind(host, port))
            port = sockets[0].getsockname()[1]
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets, port


def _bind(host: str, port: int) -> socket.socket:
    where = join_host(host, port)
    bound: socket.socket | None = None
    try:
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        bound.bind((host, port))
        bound.listen()
    except OSError as error:
        if bound is not None:
            bound.close()
        if error.errno == errno.EADDRINUSE:
            fix = f"Stop the other program, or choose another --port than {port} (0 takes any free one)."
            raise AddressError(f"cannot listen on {where}: another program holds this port", fix) from error
        fix = "Choose an address of this machine (--host-maddrs) and a --port above 1023."
        raise AddressError(f"cannot listen on {where}: {error.strerror}", fix) from error
    return bound
