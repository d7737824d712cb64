"""What a volunteer's daemon and a bootstrap node have in common: home and lock, identity, exchange endpoint, directory,
control socket. Opened and closed as one."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.daemon.clock import WallClock
from peer.daemon.control import ControlServer
from peer.daemon.donor import Donor
from peer.daemon.reach import Reach
from peer.errors import AddressError
from peer.identity import Identity
from peer.net.directory.address import check_announced, check_listen, check_peers
from peer.net.directory.dht import DhtDirectory
from peer.net.transport import GrpcTransport
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, RunId
from peer.run.home import Home, RunFolder, write_whole

Say = Callable[[str], None]
ANY_HOST = "/ip4/0.0.0.0/tcp/0"
ANY_HOST_6 = "/ip6/::/tcp/0"


def any_hosts() -> tuple[str, ...]:
    """Where to listen if nobody says: at every address, of IPv6 too where this machine has it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return (ANY_HOST,)
    return (ANY_HOST, ANY_HOST_6)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What a person chose. Rates in bytes per second, None: no cap."""

    home: Path
    identity_path: Path | None = None
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = (ANY_HOST,)
    announce_maddrs: tuple[str, ...] = ()
    port: int = 0
    """Of the exchange service; 0: the one used last time, else any free one."""
    max_upload: float | None = None
    max_download: float | None = None
    metrics_port: int | None = None
    """Of the metrics page; 0: any free one; None: no page."""
    metrics_host: str = "127.0.0.1"


@dataclass
class Node:
    """The open parts of a daemon."""

    options: NodeOptions
    home: Home
    folder: RunFolder
    identity: Identity
    run_id: RunId
    clock: WallClock
    donor: Donor
    transport: GrpcTransport
    directory: DhtDirectory
    port: int
    say: Say
    reach: Reach
    control: ControlServer | None = field(default=None)

    @property
    def me(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    def endpoints(self) -> tuple[str, ...]:
        """Where others dial the exchange service: where they were seen to get through, then where we think they may."""
        return tuple(dict.fromkeys([*self.reach.state.endpoints(), *supposed(self)]))[:MAX_ENDPOINTS]


def supposed(node: Node) -> tuple[str, ...]:
    """Our own idea of our endpoints: the hosts of the announced, else of the visible addresses."""
    addresses = node.options.announce_maddrs or tuple(node.directory.addresses())
    return tuple(dict.fromkeys(f"{_host_of(address)}:{node.port}" for address in addresses))[:MAX_ENDPOINTS]


def _host_of(maddr: str) -> str:
    """The host of `/ip4/1.2.3.4/tcp/1…` or `/dns4/name/tcp/1…`, IPv6 in brackets."""
    parts = maddr.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6", "dns4", "dns6", "dns"):
        raise AddressError(f"cannot read a host from the address {maddr!r}", "Use /ip4/…/tcp/… or /dns4/…/tcp/….")
    return f"[{parts[2]}]" if parts[1] == "ip6" else parts[2]


@contextlib.asynccontextmanager
async def open_node(options: NodeOptions, run_id: RunId, say: Say) -> AsyncIterator[Node]:
    """Open everything in order, close it in reverse, whatever happens in between. The caller holds the home's lock.

    Raises IdentityError, HomeUnusable, AddressError or DirectoryFailed."""
    check_listen(options.host_maddrs)
    check_announced(options.announce_maddrs)
    check_peers(options.initial_peers)
    home = Home(options.home)
    folder = home.run(run_id)
    key_path = options.identity_path or home.identity
    identity = identities.load_or_create(key_path)
    clock, donor = WallClock(), Donor()
    transport = GrpcTransport(
        identity,
        run_id,
        donor,
        clock.now,
        max_upload=options.max_upload,
        max_download=options.max_download,
    )
    transport.correction = lambda: clock.correction
    ports = _Ports(folder.path / "ports.json")
    async with contextlib.AsyncExitStack() as stack:
        hosts = [_host_of(address).strip("[]") for address in options.host_maddrs]
        port = await _listen(transport, hosts, options.port, ports)
        stack.push_async_callback(transport.close)
        directory = await DhtDirectory.start(
            identity=identity,
            identity_path=key_path,
            run_id=run_id,
            initial_peers=list(options.initial_peers),
            host_maddrs=list(options.host_maddrs),
            announce_maddrs=list(options.announce_maddrs),
            cache_path=folder.path / "directory.json",
            now=clock.now,
        )
        stack.push_async_callback(directory.close)
        ports.keep(port)
        reach = Reach(transport, clock, random.Random(), lambda: supposed(node))
        node = Node(options, home, folder, identity, run_id, clock, donor, transport, directory, port, say, reach)
        yield node


async def _listen(transport: GrpcTransport, hosts: list[str], port: int, ports: _Ports) -> int:
    """The port asked for; else the one used last time, so that a restart keeps its address; else any."""
    if port or not ports.exchange:
        return await transport.start(hosts[0], port, *hosts[1:])
    try:
        return await transport.start(hosts[0], ports.exchange, *hosts[1:])
    except AddressError:
        return await transport.start(hosts[0], 0, *hosts[1:])


class _Ports:
    """The exchange port of the last start, remembered. (The directory remembers its own.)"""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.exchange = 0
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(path.read_text())["exchange"]
            self.exchange = kept if isinstance(kept, int) and 0 < kept < 65536 else 0

    def keep(self, exchange: int) -> None:
        write_whole(self._path, json.dumps({"exchange": exchange}).encode())


async def serve_control(node: Node, answer: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Open the control socket of this home."""
    node.control = ControlServer(node.home.control_socket, answer)
    await node.control.start()
