"""The network side that a volunteer's daemon and a bootstrap node have in common: transport, directory, and the ways in
which others reach this node. `open_node` opens all of them, and closes them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peer import identity as identities
from peer.aio.tasks import background_task
from peer.clock.run_clock import RunClock
from peer.discovery.dht_node.health import ordinal
from peer.discovery.dht_node.process import DhtNodeLimits
from peer.discovery.directory import DhtDirectory, DirectoryListeners
from peer.discovery.lan import LanPeers
from peer.discovery.multiaddr import check_announced, check_listen, check_peers, split
from peer.errors import AddressError, for_shell
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.joining.invitation import own_invitation
from peer.membership.key_watch import KeyWatch
from peer.membership.peer_exchange import PeerExchange, TrustedPeers
from peer.membership.reachability import ReachabilityProbe
from peer.membership.relay_reservations import RelayReservations, RelaySetting
from peer.membership.reputation import Reputation
from peer.node.handler import RequestHandler
from peer.node.port_mapping import port_mapper
from peer.node.record import PeerAddress
from peer.observe import events
from peer.observe.control_bytes import sum_control_bytes
from peer.observe.line_bytes import LineBytes, LineMeter, estimated
from peer.observe.log_file import log_file
from peer.ports.console import Say
from peer.protocol.endpoints import host_of, join_host
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, RunId
from peer.run.home import Home, RunFolder, write_whole
from peer.run.options import NodeOptions
from peer.signed_start import KeyStarts
from peer.transport.client.dialling import Dialler, OwnPlace, resolve
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from peer.transport.port_mapping.mapper import PortMapper
from peer.transport.wire.payload_stream import NoBudget, UploadBudget
from peer.user_folders import expand_user

NODE_LIMITS = DhtNodeLimits(connections=1024, kept=512)
"""Limits of an operator's node. Every peer of the run keeps a connection to it."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The parts of a node that need no network: options, home, key and clock."""

    options: NodeOptions
    home: Home
    folder: RunFolder
    identity: Identity
    run_id: RunId
    say: Say
    clock: RunClock
    temporary_identity: Identity | None = None
    """The key that a temporary node (of `peer doctor`, or of a fetch by ticket) proves to peers. Such a node appears in
    no directory. None: this is no temporary node."""

    @classmethod
    def of(cls, options: NodeOptions, run_id: RunId, say: Say, temporary_identity: Identity | None = None) -> LocalNode:
        """Open or create the home, the run's folder and the key. Raises IdentityError, HomeUnusable or AddressError."""
        check_listen(options.host_maddrs)
        check_announced(options.announce_maddrs)
        check_peers(options.initial_peers)
        home = Home(options.home)
        folder = home.run(run_id)
        identity = identities.load_or_create(key_path(options, home))
        return cls(options, home, folder, identity, run_id, say, RunClock(), temporary_identity)

    @property
    def me(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    @property
    def proven(self) -> Identity:
        """The key that this node proves to other peers."""
        return self.temporary_identity or self.identity


def key_path(options: NodeOptions, home: Home) -> Path:
    """Return the file of the node's key."""
    return expand_user(options.identity_path or home.identity)


def ignore_event(event: events.Event) -> None:
    """Drop an event. For nodes without a journal."""


def network_news(event: events.Event) -> str:
    """Return the sentence that an event of the network side shows to a person. Empty: the event is not shown."""
    match event:
        case events.ReachabilityChanged(reachable=reachable, reason=why):
            return f"reachable by others: {'yes' if reachable else 'no'}: {why}"
        case events.PortMappingChanged(reason=why):
            return f"port mapping: {why}"
        case events.HelperEnded(cause=cause, times=times):
            again = f" ({ordinal(times)} time in a row)" if times > 1 else ""
            return f"directory: {cause}; starting it again{again}, the others are still known"
        case events.HelperBack(seconds=seconds):
            return f"directory: back after {seconds:.1f} s"
    return ""


@dataclass(frozen=True, slots=True)
class OpenNode:
    """The open network side of a daemon, with the parts that it was made from."""

    local: LocalNode
    handler: RequestHandler
    transport: GrpcTransport
    directory: DhtDirectory
    reach: ReachabilityProbe
    port: int
    mapping: PortMapper
    reservations: RelayReservations
    key_watch: KeyWatch
    line: LineMeter

    def endpoints(self) -> tuple[str, ...]:
        """Return the addresses of the exchange service, the most reliable first: those that a dial-back reached, those
        of the options or the DHT, and those that other peers saw us call from.

        The record is public, so addresses inside our network are left out."""
        ours = supposed(self.local.options, self.directory, self.port)
        dialler = self.transport.dialler
        seen = [join_host(host, self.port) for host in dialler.seen_hosts()]
        return tuple(dict.fromkeys(dialler.announceable([*self.reach.reachability.endpoints(), *ours, *seen])))[
            :MAX_ENDPOINTS
        ]

    def address(self) -> PeerAddress:
        """Return this node's id, endpoints and reachability, as its record has them."""
        return PeerAddress(
            self.local.me,
            self.local.run_id,
            self.endpoints,
            lambda: self.reach.reachable,
            self.mapping.carries,
            self.reservations.relays,
            self.key_watch.nonce,
        )

    async def withdraw(self) -> None:
        """Remove our record from the directory, unless another process with our key still runs, because both processes
        share the record."""
        if not self.key_watch.stops:
            await self.directory.withdraw()

    def join_context(self) -> JoinContext:
        """Return the ports that joining a run needs."""
        local = self.local
        return JoinContext(
            run_id=local.run_id,
            me=local.me,
            directory=self.directory,
            transport=self.transport,
            clock=local.clock,
            say=local.say,
            folder=local.folder,
        )


def trusted_of(options: NodeOptions) -> frozenset[PeerId]:
    """Return the nodes that the ticket names, which are the operator's."""
    return frozenset(PeerId(split(address)[1]) for address in options.initial_peers)


def supposed(options: NodeOptions, directory: DhtDirectory, port: int) -> tuple[str, ...]:
    """Return the endpoints that this node assumes without a dial-back: the announced hosts, or else the visible
    ones."""
    addresses = options.announce_maddrs or tuple(directory.addresses())
    return tuple(dict.fromkeys(f"{_host_of(address)}:{port}" for address in addresses))[:MAX_ENDPOINTS]


def _host_of(maddr: str) -> str:
    """Return the host of `/ip4/1.2.3.4/tcp/1…` or `/dns4/name/tcp/1…`, IPv6 in brackets. Raises AddressError."""
    parts = maddr.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6", "dns4", "dns6", "dns"):
        raise AddressError(f"cannot read a host from the address {maddr!r}", "Use /ip4/…/tcp/… or /dns4/…/tcp/….")
    return f"[{parts[2]}]" if parts[1] == "ip6" else parts[2]


async def _ticket_hosts(options: NodeOptions) -> tuple[str, ...]:
    """Return the addresses of the hosts that the ticket names. A node that was given no ticket is itself named by it,
    so its announced hosts are used."""
    named = options.initial_peers or options.announce_maddrs
    hosts = list(dict.fromkeys(_host_of(address) for address in named))
    found = await asyncio.gather(*(resolve(f"{host}:1") for host in hosts))  # a name may have a private address
    return tuple(host_of(one) for host, ones in zip(hosts, found, strict=True) for one in ones or [f"{host}:1"])


@contextlib.asynccontextmanager
async def open_node(
    local: LocalNode,
    reputation: Reputation | None = None,
    quota: UploadBudget | None = None,
    emit: Callable[[events.Event], None] = ignore_event,
    record_changed: Callable[[], None] = lambda: None,
    limits: DhtNodeLimits | None = None,
) -> AsyncIterator[OpenNode]:
    """Open the network side in order, and close it in reverse, also after an error. The caller holds the home's lock.

    `reputation`: judges callers. None: a new one, which knows no peer. `quota`: limits what is sent. None: no limit.
    `emit`: receives the events of the network side. `record_changed`: called when others should see our new record
    soon. `limits`: of p2pd. None: those of a volunteer's peer.

    Raises AddressError, DirectoryFailed or TicketError."""
    options, clock, handler = local.options, local.clock, RequestHandler()
    reputation = Reputation(clock.now, emit) if reputation is None else reputation
    own = own_invitation(local.folder.path, options.invitation, local.run_id, PeerId(local.proven.peer_id), clock.now())
    trusted, ticket_hosts = trusted_of(options), await _ticket_hosts(options)
    starts = KeyStarts(local.identity, local.run_id, clock.now())
    ports = _Ports(local.folder.path / "ports.json")

    def reachability_changed(reachable: bool, why: str) -> None:
        emit(events.ReachabilityChanged(reachable=reachable, reason=why))
        record_changed()

    def port_mapping_changed(port: int, why: str) -> None:
        emit(events.PortMappingChanged(port=port, reason=why))
        record_changed()

    # Transport, directory and the parts for reachability call one another, so all are created before any is started:
    # up to `serve` nothing is awaited, and no part calls another one.
    transport = GrpcTransport(
        local.proven,
        local.run_id,
        handler,
        clock.now,
        TransportPolicy(
            max_upload=options.max_upload,
            max_download=options.max_download,
            quota=quota or NoBudget(),
            reputation=reputation,
            invitation=b"" if own is None else own.raw,
            relaying=RelayPolicy(
                rate=options.relay,
                left=lambda relay, fault: reservations.leave(relay, fault),
                record_of=lambda peer: directory.known().get(peer),
                mapped=lambda: mapping.carries(),
            ),
            place=OwnPlace(endpoints=lambda: supposed(options, directory, port), ticket=ticket_hosts, trusted=trusted),
        ),
        correction=lambda: clock.correction,
        starts=starts
        if local.temporary_identity is None
        else None,  # a temporary node may run beside a daemon with the same key
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_log_of(local))
        port = _bound(transport, _hosts(options), options.port, ports)
        stack.push_async_callback(transport.close)
        key_watch = KeyWatch(starts, transport.greet_copy, clock, emit, local.say, _new_key(local))
        directory = DhtDirectory(
            identity=local.identity,
            identity_path=key_path(options, local.home),
            run_id=local.run_id,
            initial_peers=list(options.initial_peers),
            host_maddrs=list(options.host_maddrs),
            announce_maddrs=list(options.announce_maddrs),
            cache_path=local.folder.path / "directory.json",
            now=clock.now,
            limits=limits,
            listeners=DirectoryListeners(
                watcher=_HelperEvents(emit),
                on_bad_record=reputation.bad_record,
                proven=lambda: reputation.proven,
                on_own_record=key_watch.note_own_record,
                # A port opened by the router serves the exchange alone, so others cannot call our DHT node. A
                # temporary node must not get into routing tables and caches of addresses.
                is_closed=lambda: (
                    local.temporary_identity is not None or mapping.carries() or reach.reachability.reachable() is False
                ),
            ),
        )
        reach = ReachabilityProbe(
            transport,
            clock,
            random.Random(),
            lambda: (*mapping.endpoints(), *supposed(options, directory, port))[:MAX_ENDPOINTS],
            reachability_changed,
            trusted,
            near=lambda: directory.own_network().keys(),
        )
        reservations = RelayReservations(
            transport,
            clock,
            random.Random(),
            RelaySetting(
                me=local.me,
                closed=lambda: reach.reachability.reachable() is False,
                near=lambda: directory.own_network().keys(),
                nodes=trusted,
                emit=emit,
                changed=record_changed,
            ),
        )
        mapping = port_mapper(
            port,
            _hosts(options),
            transport.dialler,
            reach,
            clock,
            wanted=options.port_mapping,
            left_over=ports.mapped if port == ports.exchange else 0,
            keep=ports.keep_mapped,
            told=port_mapping_changed,
        )
        exchange = PeerExchange(directory, TrustedPeers(trusted, reputation.is_proven), clock, random.Random())
        line = _line_of(transport, directory, port)
        await transport.serve()
        await directory.start()
        stack.push_async_callback(directory.close)
        handler.register(peer_exchange=exchange)
        await stack.enter_async_context(background_task(exchange.run(transport)))
        ports.keep(port)
        await stack.enter_async_context(background_task(reservations.run(directory.known)))
        stack.push_async_callback(mapping.close)
        if options.port_mapping:
            mapping.start()
        _look_around(local, directory, transport.dialler, port)
        await stack.enter_async_context(background_task(line.watch()))
        yield OpenNode(local, handler, transport, directory, reach, port, mapping, reservations, key_watch, line)


class _HelperEvents:
    """Turns notices of the p2pd watcher into events. Implements `peer.discovery.dht_node.health.Watcher`."""

    def __init__(self, emit: Callable[[events.Event], None]) -> None:
        self._emit = emit

    def helper_ended(self, cause: str, times: int) -> None:
        self._emit(events.HelperEnded(cause=cause, times=times))

    def helper_back(self, seconds: float, times: int) -> None:
        self._emit(events.HelperBack(seconds=round(seconds, 3), times=times))


def _line_of(transport: GrpcTransport, directory: DhtDirectory, port: int) -> LineMeter:
    """Return the meter of the bytes that this process and its p2pd send and receive."""

    def processes() -> tuple[int, ...]:
        helper = directory.helper_pid
        return (os.getpid(),) if helper is None else (os.getpid(), helper)

    def estimate() -> LineBytes:
        control = sum_control_bytes(transport.control, directory.control)
        sent, received = sum(control.sent.values()), sum(control.received.values())
        return estimated(transport.bytes_sent, transport.bytes_received, sent, received)

    return LineMeter(processes, lambda: port, estimate)


def _new_key(local: LocalNode) -> str:
    """Return the advice for a user whose key is in use twice: the command that makes a new key."""
    options = (
        f"--identity-path {for_shell(path)}"
        if (path := local.options.identity_path)
        else f"--home {for_shell(local.home.path)}"
    )
    return f"If this is the copy, make a new one with: peer id new {options}   Then start again."


@contextlib.contextmanager
def _log_of(local: LocalNode) -> Iterator[None]:
    """Write the run's log file within the context. A temporary node writes none."""
    if local.temporary_identity is not None:
        yield
        return
    with log_file(local.folder.log):
        local.say(f"log: {local.folder.log}")
        yield


def _look_around(local: LocalNode, directory: DhtDirectory, dialler: Dialler, port: int) -> None:
    """Start to look for peers in our own network, unless the volunteer or the run turned that off."""
    if not local.options.lan or dialler.private_run():
        return
    hosts = [host_of(endpoint).strip("[]") for endpoint in supposed(local.options, directory, port)]
    lan = LanPeers(
        local.run_id,
        local.me,
        hosts,
        port,
        announces=local.temporary_identity is None,
        answered_hosts=dialler.answered_hosts,
    )
    directory.browse_lan(lan)


def _hosts(options: NodeOptions) -> list[str]:
    """Return the hosts on which the exchange service listens."""
    return [_host_of(address).strip("[]") for address in options.host_maddrs]


def _bound(transport: GrpcTransport, hosts: list[str], port: int, ports: _Ports) -> int:
    """Bind the requested port. If none was requested, bind the port of the last start, so that the address survives a
    restart, or else any free port."""
    if port or not ports.exchange:
        return transport.bind(hosts[0], port, *hosts[1:])
    try:
        return transport.bind(hosts[0], ports.exchange, *hosts[1:])
    except AddressError:
        return transport.bind(hosts[0], 0, *hosts[1:])


class _Ports:
    """The file with the exchange port of the last start, and the router's port that a crash left open. The directory
    stores its own port."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.exchange = self._kept("exchange")
        self.mapped = self._kept("mapped")

    def keep(self, exchange: int) -> None:
        self._keep(exchange, self.mapped if exchange == self.exchange else 0)

    def keep_mapped(self, mapped: int) -> None:
        if mapped != self.mapped:
            self._keep(self.exchange, mapped)

    def _keep(self, exchange: int, mapped: int) -> None:
        self.exchange, self.mapped = exchange, mapped
        kept = {"exchange": exchange} | ({"mapped": mapped} if mapped else {})
        write_whole(self._path, json.dumps(kept).encode())

    def _kept(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(self._path.read_text())[name]
            return kept if isinstance(kept, int) and 0 < kept < 65536 else 0
        return 0
