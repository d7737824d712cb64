"""libp2p addresses (multiaddrs) as text, like `/ip4/192.0.2.7/tcp/4001/p2p/12D3Koo…`.

They are TCP only. The QUIC of the p2pd that hivemind ships can be made to exhaust memory remotely (CVE-2023-49295,
CVE-2024-22189)."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence

from peer.errors import AddressError
from peer.identity import public_key_of
from peer.protocol.endpoints import block_of_host

_LISTEN = re.compile(r"/ip([46])/([0-9a-fA-F.:]{2,45})/tcp/([0-9]{1,5})\Z")
_HOST_PORT = r"/(ip4|ip6|dns|dns4|dns6)/([0-9A-Za-z.:-]{1,253})/tcp/([0-9]{1,5})"
_DIAL = re.compile(_HOST_PORT + r"/p2p/([1-9A-HJ-NP-Za-km-z]{40,64})\Z")
_ANNOUNCE = re.compile(_HOST_PORT + r"\Z")


def is_dialable(text: str) -> bool:
    """Return whether this is the complete TCP address of an Ed25519 peer."""
    match = _DIAL.match(text)
    if match is None or not 1 <= int(match[3]) <= 65535:
        return False
    try:
        public_key_of(match[4])
        if match[1] in ("ip4", "ip6"):
            _check_ip(match[1][2:], match[2])
    except ValueError:
        return False
    return True


def split(text: str) -> tuple[str, str]:
    """Split a dialable address into the address without the peer, and the peer id."""
    address, _, peer_id = text.partition("/p2p/")
    return address, peer_id


def block_of_address(text: str) -> str:
    """Return the block (`peer.protocol.endpoints.block_of`) of an address; "" when it names no host."""
    match = re.match(r"/(?:ip4|ip6|dns|dns4|dns6)/([0-9A-Za-z.:-]{1,253})(?:/|\Z)", text)
    return block_of_host(match[1]) if match else ""


def check_peers(texts: Sequence[str]) -> None:
    """Raise AddressError unless all are complete addresses of peers."""
    for text in texts:
        if not is_dialable(text):
            raise AddressError(
                f"not the address of a peer: {text[:200]}",
                "Write it like /ip4/192.0.2.7/tcp/4001/p2p/12D3Koo… (TCP; the peer id comes last).",
            )


def check_announced(texts: Sequence[str]) -> None:
    """Raise AddressError unless all are TCP addresses with a port, without a peer id."""
    for text in texts:
        match = _ANNOUNCE.match(text)
        if match is None or not 1 <= int(match[3]) <= 65535:
            raise AddressError(
                f"cannot announce the address {text[:200]}",
                "Write it like /ip4/192.0.2.7/tcp/4001 or /dns4/host.example/tcp/4001, with the port others dial.",
            )


def check_listen(texts: Sequence[str]) -> None:
    """Raise AddressError unless all of these are IP addresses with TCP ports to listen at; port 0 takes any free
    one."""
    for text in texts:
        _parse_listen(text)


def is_listenable(text: str) -> bool:
    """Return whether `check_listen` accepts the address."""
    try:
        _parse_listen(text)
    except AddressError:
        return False
    return True


@contextlib.contextmanager
def claimed(listen: Sequence[str]) -> Iterator[list[str]]:
    """Hold these addresses while p2pd is started in the block; yield them with free ports in place of port 0.

    p2pd listens with SO_REUSEPORT, so two of the same user on one port would both start and share their callers at
    random. Each port is therefore first bound without that option. Raises AddressError, with the address, if it is
    taken or is not an address of this machine."""
    with contextlib.ExitStack() as held:
        ready = []
        for address in listen:
            version, host, port = _parse_listen(address)
            try:
                with _bound(version, host, port, socket.SO_REUSEADDR) as trial:
                    port = trial.getsockname()[1]
                held.enter_context(_bound(version, host, port, socket.SO_REUSEPORT))
            except OSError as error:
                raise _cannot_listen(address, error) from error
            ready.append(f"/ip{version}/{host}/tcp/{port}")
        yield ready


def _parse_listen(address: str) -> tuple[str, str, int]:
    match = _LISTEN.match(address)
    try:
        if match is None or int(match[3]) > 65535:
            raise ValueError(address)
        _check_ip(match[1], match[2])
    except ValueError:
        raise AddressError(
            f"cannot listen on {address[:200]}",
            "Write it like /ip4/0.0.0.0/tcp/4001 or /ip6/::/tcp/4001 (TCP only; port 0 takes any free one).",
        ) from None
    return match[1], match[2], int(match[3])


def _bound(version: str, host: str, port: int, option: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET if version == "4" else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        if version == "6":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _cannot_listen(address: str, error: OSError) -> AddressError:
    if error.errno == errno.EADDRINUSE:
        return address_taken(address)
    return AddressError(
        f"cannot listen on {address}: {error.strerror}", "Choose an address of this machine and a port above 1023."
    )


def address_taken(listen: str) -> AddressError:
    """Return the error for an address at which another program listens."""
    return AddressError(
        f"cannot listen on {listen}: another program holds this port",
        "Choose another port with --host-maddrs, or stop the other program. Port 0 takes any free one.",
    )


def advertised(visible: Sequence[str], listen: Sequence[str]) -> list[str]:
    """Return the addresses of a node that other peers should get, public ones first.

    Loopback addresses are included only if the node listens at one explicitly, or has no other address."""
    outside = [address for address in visible if not is_loopback(address)]
    kept = list(visible) if any(is_loopback(address) for address in listen) else outside or list(visible)
    return sorted(kept, key=lambda address: not _is_public(address))


def is_loopback(address: str) -> bool:
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


def _is_public(address: str) -> bool:
    ip = _ip_of(address)
    return ip is None or ip.is_global


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    match = re.match(r"/ip[46]/([^/]+)", address)
    return ipaddress.ip_address(match[1]) if match else None


def _check_ip(version: str, text: str) -> None:
    if ipaddress.ip_address(text).version != int(version):
        raise ValueError(text)
