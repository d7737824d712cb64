"""The address of a page and its listening socket. The socket is bound before the daemon starts, so that an occupied
port is reported at once."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from peer.errors import AddressError, UsageError

_BACKLOG = 128
_FORM = "Write HOST:PORT, e.g. --web 127.0.0.1:4880 or --web [::1]:0. Port 0 takes any free one."
_FREE = "Name another address, e.g. --web 127.0.0.1:0, which takes any free port."


@dataclass(frozen=True, slots=True)
class WebAddress:
    """A host and port to listen on. `host` has no brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> WebAddress:
        """Parse HOST:PORT, or a port alone for loopback. Raises UsageError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65536):
            raise UsageError(f"{text[:100]!r} names no port for the page", _FORM)
        return cls(host or "127.0.0.1", int(port))

    @property
    def local(self) -> bool:
        """Whether the address is loopback, so that only this machine reaches it."""
        return self.host == "localhost" or (_is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def bind(self, what: str = "the page", fix: str = _FREE) -> BoundSocket:
        """Open a listening socket. `what` and `fix` go into the error: what is served, and the advice.

        Raises AddressError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:  # includes socket.gaierror, for an unknown host name
            taken = error.errno == errno.EADDRINUSE
            why = "another program holds this port" if taken else error.strerror or str(error)
            raise AddressError(
                f"cannot listen at {self} for {what}: {why}", fix, "Browsers or other programs ask there."
            ) from error
        return BoundSocket(listening, WebAddress(self.host, listening.getsockname()[1]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A listening socket and its address."""

    socket: socket.socket
    address: WebAddress


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of_header(value: str) -> str:
    """Return the host of a Host header, or of an Origin without its scheme: in lower case, without port and
    brackets."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.partition(":")[0].lower()


def names_this_page(value: str, names: frozenset[str]) -> bool:
    """Return whether a Host header is valid for this page: an IP address, `localhost`, or one of `names`.

    Protects against DNS rebinding: a foreign page whose name was made to resolve to our address sends that name."""
    host = host_of_header(value)
    return host == "localhost" or host in names or _is_ip(host)
