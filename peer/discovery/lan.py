"""Finds peers of this run in the same local network by multicast DNS (RFC 6762, RFC 6763).

Public records do not contain the addresses inside a home. Peers behind one router announce these to each other by
multicast, which no router forwards.

Any machine of the network can send any announcement, and announcements are not signed. An announced address is
therefore only a hint; it is confirmed when the peer's key has answered there. The table of announced names is bounded:

* When it is full, a new name displaces an unconfirmed one, never a confirmed one.
* An announcement adds addresses to a name, and replaces no confirmed address.
* A goodbye removes nothing. It makes an unconfirmed name the next to be displaced."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Sequence

import blake3
from zeroconf import Error, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from peer.aio.tasks import cancel_and_wait
from peer.identity import public_key_of
from peer.protocol.endpoints import host_of, join_host
from peer.protocol.messages import PeerId, RunId

SERVICE = "_peer-swarm._tcp.local."
ANSWER_S = 3.0
"""Seconds that a machine has to answer a query about a name that it announced."""
MAX_PEERS = 1024
"""Most names that are remembered, at a few hundred bytes each."""
MAX_NAMES = 4096
"""Names after which the browser is closed, because the library keeps each one for an hour or more, without a bound."""
REST_S = 300.0
"""Seconds without a browser after that, so that a flood costs at most a few MB each time."""
MAX_ASKING = 8
"""Most names that are looked up at once. Only a name whose announcement lacks its address is looked up; `peer`
announces both in one packet. Further names wait for their next announcement."""
MAX_ADDRESSES = 4

log = logging.getLogger(__name__)


def run_tag(run_id: RunId) -> bytes:
    """Return the tag that marks announcements of a run. It does not reveal the run to anybody who does not know its
    id."""
    return blake3.blake3(b"peer lan v1" + run_id).digest(8).hex().encode()


class LanPeers:
    """Announces this peer in its own network, and remembers the other peers there. Without multicast it finds no peers,
    and `why_none` has the reason.

    `hosts`: our own addresses; only private IPv4 addresses are used. `port`: of our exchange service."""

    def __init__(
        self,
        run_id: RunId,
        me: PeerId,
        hosts: Sequence[str],
        port: int,
        *,
        announces: bool = True,
        answered_hosts: Callable[[PeerId], Collection[str]] = lambda peer: (),
    ) -> None:
        """`announces`: False for a guest, which only listens. `answered_hosts`: returns the hosts at which the key of a
        peer has answered us."""
        self._answered_hosts = answered_hosts
        self._announces = announces
        self._tag = run_tag(run_id)
        self._me = me
        self._hosts = [host for host in hosts if _is_private(host)]
        self._on_loopback = bool(self._hosts) and all(map(_is_loopback, self._hosts))
        self._port = port
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._names = 0
        """Number of names that appeared since the browser was opened."""
        self.found: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        """The announced `host:port` of each name, confirmed ones first. The first name is displaced first."""
        self.why_none = ""

    def near(self) -> dict[PeerId, tuple[str, ...]]:
        """Return the peers in our own network, with the addresses at which they listen (`host:port`).

        A peer whose key has answered us only at other hosts than the announced ones is left out, since another machine
        announced it."""
        return {
            peer: endpoints
            for peer, endpoints in self.found.items()
            if not self._answered_hosts(peer) or self._confirmed_of(peer, endpoints)
        }

    def _confirmed_of(self, peer: PeerId, endpoints: Sequence[str]) -> list[str]:
        """Return the endpoints at whose host the key of the peer has answered us."""
        answered = self._answered_hosts(peer)
        return [endpoint for endpoint in endpoints if host_of(endpoint) in answered]

    def summary(self, recorded: Container[PeerId]) -> str:
        """Return the number of found peers that have a record, or why there can be none, as text for a person."""
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
            self._browse()
            if self._announces:
                await own.async_register_service(self._announcement(), cooperating_responders=True)
        except (OSError, Error) as error:
            self.why_none = f"no multicast here: {error}"

    def _browse(self) -> None:
        assert self._zeroconf is not None
        self._names = 0
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._changed])

    async def _rest(self) -> None:
        """Close the browser, which frees its memory, and open another one later."""
        browser, self._browser = self._browser, None
        log.warning("a machine of this network announces very many names; looking again in %.0f s", REST_S)
        if browser is not None:
            await browser.async_cancel()
        await asyncio.sleep(REST_S)
        self._browse()

    async def close(self) -> None:
        """Withdraw the announcement, and stop listening."""
        for task in [*self._asking, *filter(None, [self._opening, self._resting])]:
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
        if state_change is ServiceStateChange.Added:
            self._names += 1
        if self._names > MAX_NAMES:
            if self._resting is None or self._resting.done():
                self._resting = asyncio.create_task(self._rest())
            return
        peer = PeerId(name.removesuffix(f".{SERVICE}"))
        if peer == self._me or not _is_peer(peer):
            return
        info = AsyncServiceInfo(SERVICE, name)
        if state_change is ServiceStateChange.Removed:
            self._on_goodbye(peer)
        elif info.load_from_cache(zeroconf):
            self._add_announced(peer, info)
        elif len(self._asking) < MAX_ASKING:
            task = asyncio.create_task(self._look_up(zeroconf, peer, info))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _on_goodbye(self, peer: PeerId) -> None:
        """Let an unconfirmed name be displaced first. The name itself stays: anybody can send a goodbye, and a peer
        that has left loses its record anyway."""
        if peer in self.found and not self._confirmed_of(peer, self.found[peer]):
            self.found.move_to_end(peer, last=False)

    async def _look_up(self, zeroconf: Zeroconf, peer: PeerId, info: AsyncServiceInfo) -> None:
        try:
            if await info.async_request(zeroconf, 1000 * ANSWER_S):
                self._add_announced(peer, info)
        except (OSError, Error) as error:
            log.debug("no answer about %s: %s", peer, error)

    def _add_announced(self, peer: PeerId, info: AsyncServiceInfo) -> None:
        """Remember the announced addresses of a peer, if they are of this run and of this network."""
        if info.properties.get(b"run") != self._tag or not info.port:
            return
        hosts = [host for host in info.parsed_addresses() if _is_private(host)]
        named = [join_host(host, info.port) for host in hosts if self._on_loopback or not _is_loopback(host)]
        if not named:
            return
        held = self.found.get(peer, ())
        confirmed = self._confirmed_of(peer, held)
        if peer not in self.found and len(self.found) >= MAX_PEERS:
            displaced = next((name for name, at in self.found.items() if not self._confirmed_of(name, at)), None)
            if displaced is None:
                return
            del self.found[displaced]
        self.found[peer] = tuple(dict.fromkeys([*confirmed, *named, *held]))[:MAX_ADDRESSES]


def _is_private(host: str) -> bool:
    """Return whether this is a private IPv4 address, which no router forwards. IPv6 has few such addresses, and homes
    have IPv4 too."""
    with contextlib.suppress(ValueError):
        address = ipaddress.IPv4Address(host)
        return not (address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified)
    return False


def _is_loopback(host: str) -> bool:
    """Return whether an IPv4 address is a loopback address. If another machine announced it, we would dial our own
    programs."""
    return ipaddress.IPv4Address(host).is_loopback


def _check_own(hosts: Sequence[str]) -> None:
    """Raise OSError unless this machine has these addresses. The library would leave sockets open that it cannot
    use."""
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))


def _is_peer(peer: PeerId) -> bool:
    with contextlib.suppress(ValueError):
        return bool(public_key_of(peer))
    return False
