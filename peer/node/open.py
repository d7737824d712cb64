"""What a volunteer's daemon and a bootstrap node have in common: home and lock, identity, exchange endpoint, directory,
control socket. Opened and closed as one."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.clock.run_clock import RunClock
from peer.discovery.directory import DhtDirectory
from peer.discovery.multiaddr import check_announced, check_listen, check_peers
from peer.errors import AddressError
from peer.identity import Identity
from peer.membership.reachability import ReachabilityProbe
from peer.node.control import ControlServer
from peer.node.handler import RequestHandler
from peer.ports.console import Say
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, RunId
from peer.run.home import Home, RunFolder, write_whole
from peer.run.options import NodeOptions
from peer.transport.grpc_transport import GrpcTransport


@dataclass
class OpenNode:
    """The open parts of a daemon."""

    options: NodeOptions
    home: Home
    folder: RunFolder
    identity: Identity
    run_id: RunId
    clock: RunClock
    donor: RequestHandler
    transport: GrpcTransport
    directory: DhtDirectory
    port: int
    say: Say
    reach: ReachabilityProbe
    control: ControlServer | None = field(default=None)

    @property
    def me(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    def endpoints(self) -> tuple[str, ...]:
        """Where others dial the exchange service: where they were seen to get through, then where we think they may."""
        return tuple(dict.fromkeys([*self.reach.state.endpoints(), *supposed(self)]))[:MAX_ENDPOINTS]


def supposed(node: OpenNode) -> tuple[str, ...]:
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
async def open_node(options: NodeOptions, run_id: RunId, say: Say) -> AsyncIterator[OpenNode]:
    """Open everything in order, close it in reverse, whatever happens in between. The caller holds the home's lock.

    Raises IdentityError, HomeUnusable, AddressError or DirectoryFailed."""
    check_listen(options.host_maddrs)
    check_announced(options.announce_maddrs)
    check_peers(options.initial_peers)
    home = Home(options.home)
    folder = home.run(run_id)
    key_path = options.identity_path or home.identity
    identity = identities.load_or_create(key_path)
    clock, donor = RunClock(), RequestHandler()
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
        reach = ReachabilityProbe(transport, clock, random.Random(), lambda: supposed(node))
        node = OpenNode(options, home, folder, identity, run_id, clock, donor, transport, directory, port, say, reach)
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


async def serve_control(node: OpenNode, answer: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Open the control socket of this home."""
    node.control = ControlServer(node.home.control_socket, answer)
    await node.control.start()
