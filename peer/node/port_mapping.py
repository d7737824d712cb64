"""The router's port of a node: what it is asked on, and who is told."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence

from peer.membership.reachability import ReachabilityProbe
from peer.ports.clock import Clock
from peer.protocol.endpoints import version_of
from peer.protocol.swarm.nearness import address_of
from peer.protocol.swarm.port_lease import PortLease, Surroundings, why_no_mapping
from peer.transport.client.dialling import Dialler
from peer.transport.port_mapping.mapper import PortMapper
from peer.transport.port_mapping.router import IgdRouter, missing_library_reason

OUTSIDE = ("192.0.2.1", 9)
"""An address of the documentation's (RFC 5737): the kernel is asked how it would call it, and nothing is sent."""


def port_mapper(
    port: int,
    hosts: Sequence[str],
    dialler: Dialler,
    reach: ReachabilityProbe,
    clock: Clock,
    *,
    wanted: bool,
    left_over: int,
    keep: Callable[[int], None],
    told: Callable[[int, str], None],
) -> PortMapper:
    """Return what keeps a router's port for the exchange service. The caller starts it, where the volunteer wants that,
    and closes it.

    `port`, `hosts`: where the service listens. `wanted`: whether the volunteer lets a router be asked. `left_over`: the
    router's port that an earlier life did not give back; 0: none. `keep` takes the router's port that a later life
    would find open; `told` the one that is held (0: none), and what is new of it."""
    no_library = missing_library_reason()

    def why_not(source: str) -> str:
        if not wanted:
            return "turned off (--no-port-mapping)"
        return why_no_mapping(hosts, source, private_run=dialler.private_run()) or no_library

    def around() -> Surroundings:
        state, source = reach.reachability, source_address()
        return Surroundings(
            why_not=why_not(source),
            online=source != "",
            reachable=state.reachable_over(4),
            reached=state.endpoints(),
            denied=state.denied(),
            seen=next((host for host in dialler.seen_hosts() if version_of(f"{host}:1") == 4), ""),
            owns=owns,
        )

    four = [host for host in hosts if (found := address_of(host)) is not None and found.version == 4]
    everywhere = any(host == "0.0.0.0" for host in four)  # noqa: S104 - compared, not listened at
    lease = PortLease(port, random.Random(), clock.now(), left_over)
    router = IgdRouter(() if everywhere else four)
    return PortMapper(lease, port, router, clock, around, told, keep)


def source_address() -> str:
    """Return the IPv4 address that calls into the internet leave this machine from; empty: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(OUTSIDE)
        except OSError:
            return ""
        return str(trial.getsockname()[0])


def owns(host: str) -> bool:
    """Whether an IPv4 address is one of this machine's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            return False
        return True
