"""Peers of this run in the same local network, found by multicast DNS (RFC 6762, RFC 6763).

Addresses inside a home are nobody's business outside it, so public records do not hold them. Peers behind one router
tell each other by multicast, which no router passes on. A name found so is a hint: whoever answers there still has to
prove the peer's key."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Container, Sequence

import blake3
from zeroconf import Error, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from peer.aio.tasks import cancel_and_wait
from peer.identity import public_key_of
from peer.protocol.endpoints import join_host
from peer.protocol.messages import PeerId, RunId

SERVICE = "_peer-swarm._tcp.local."
ANSWER_S = 3.0
"""Seconds for a machine of the own network to answer a question about a name that it announced."""
MAX_PEERS = 64
MAX_ASKING = 8
"""Names that are looked up at once. A name beyond is left until it is announced again."""
MAX_ADDRESSES = 4

log = logging.getLogger(__name__)


def run_tag(run_id: RunId) -> bytes:
    """Return what marks announcements of a run. It tells the run to nobody who does not know its id."""
    return blake3.blake3(b"peer lan v1" + run_id).digest(8).hex().encode()


class LanPeers:
    """Announces this peer in its own network and remembers who else is there. Without multicast it finds nobody, and
    `why_none` tells the reason.

    `hosts`: our own addresses, of which the private IPv4 ones count. `port`: of our exchange service."""

    def __init__(self, run_id: RunId, me: PeerId, hosts: Sequence[str], port: int, *, announces: bool = True) -> None:
        """`announces`: False for a guest, who only listens."""
        self._announces = announces
        self._tag = run_tag(run_id)
        self._me = me
        self._hosts = [host for host in hosts if _is_private(host)]
        self._port = port
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self.found: dict[PeerId, tuple[str, ...]] = {}
        """Where peers of the own network said that they listen."""
        self.why_none = ""

    def told(self, recorded: Container[PeerId]) -> str:
        """Return how many were found that have a record, or why nobody can be, for a person."""
        return self.why_none or f"{sum(peer in recorded for peer in self.found)} peers in your own network"

    def start(self) -> None:
        """Announce and listen until `close`. The first answers come within seconds."""
        assert self._opening is None
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        if not self._hosts:
            self.why_none = "this machine has no private address"
            return
        try:
            _check_own(self._hosts)
            self._zeroconf = own = AsyncZeroconf(interfaces=self._hosts, ip_version=IPVersion.V4Only)
            self._browser = AsyncServiceBrowser(own.zeroconf, SERVICE, handlers=[self._changed])
            if self._announces:
                await own.async_register_service(self._announcement(), cooperating_responders=True)
        except (OSError, Error) as error:
            self.why_none = f"no multicast here: {error}"

    async def close(self) -> None:
        """Take the announcement back, and stop listening."""
        for task in [*self._asking, *filter(None, [self._opening])]:
            await cancel_and_wait(task)
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            with contextlib.suppress(OSError):  # the network may be gone, and its announcements with it
                await self._zeroconf.async_close()

    def _announcement(self) -> AsyncServiceInfo:
        return AsyncServiceInfo(
            SERVICE,
            f"{self._me}.{SERVICE}",
            addresses=[ipaddress.IPv4Address(host).packed for host in self._hosts],
            port=self._port,
            properties={"run": self._tag},
            server=f"{self._me}.local.",
        )

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        peer = PeerId(name.removesuffix(f".{SERVICE}"))
        if state_change is ServiceStateChange.Removed:
            self.found.pop(peer, None)
        elif peer != self._me and _is_peer(peer) and len(self._asking) < MAX_ASKING:
            task = asyncio.create_task(self._look_up(zeroconf, peer, name))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _look_up(self, zeroconf: Zeroconf, peer: PeerId, name: str) -> None:
        info = AsyncServiceInfo(SERVICE, name)
        try:
            answered = await info.async_request(zeroconf, 1000 * ANSWER_S)
        except (OSError, Error) as error:
            log.debug("no answer about %s: %s", name, error)
            return
        if not answered or info.properties.get(b"run") != self._tag or not info.port:
            return
        hosts = [host for host in info.parsed_addresses() if _is_private(host)]
        if hosts and (peer in self.found or len(self.found) < MAX_PEERS):
            self.found[peer] = tuple(join_host(host, info.port) for host in hosts[:MAX_ADDRESSES])


def _is_private(host: str) -> bool:
    """Tell whether no router passes the address on. IPv6 has few such addresses, and homes have IPv4 beside them."""
    with contextlib.suppress(ValueError):
        return not ipaddress.IPv4Address(host).is_global
    return False


def _check_own(hosts: Sequence[str]) -> None:
    """Raise OSError unless this machine has these addresses: the library leaves a socket open that it cannot use."""
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))


def _is_peer(peer: PeerId) -> bool:
    with contextlib.suppress(ValueError):
        return bool(public_key_of(peer))
    return False
