"""Check of the addresses that a server is to listen at."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from peer.errors import AddressError


def listening(hosts: Sequence[str]) -> list[str]:
    """Return the hosts to bind, without repeats. `::` listens for IPv4 as well, and excludes any other host."""
    return ["::"] if "::" in hosts else list(dict.fromkeys(hosts))


def check_vacant(host: str, port: int, where: str) -> None:
    """Raise AddressError, with the cause, when a port cannot be bound.

    gRPC does not tell the cause, and prints its failure on the terminal."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        try:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if trial.family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            trial.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                fix = f"Stop the other program, or choose another --port than {port} (0 takes any free one)."
                raise AddressError(f"cannot listen on {where}: another program holds this port", fix) from error
            fix = "Choose an address of this machine (--host-maddrs) and a --port above 1023."
            raise AddressError(f"cannot listen on {where}: {error.strerror}", fix) from error
