"""Connects the port mapper, which has the router open a port, with the node's reachability and its options."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence

from peer.membership.reachability import ReachabilityProbe
from peer.ports.clock import Clock
from peer.protocol.endpoints import version_of
from peer.protocol.swarm.nearness import address_of
from peer.protocol.swarm.port_lease import PortLease, Surroundings, no_mapping_reason
from peer.transport.client.dialling import Dialler
from peer.transport.port_mapping.mapper import PortMapper
from peer.transport.port_mapping.router import IgdRouter, missing_library_reason

OUTSIDE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). The kernel looks up the route to it, and nothing is sent."""


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
    """Return the mapper that keeps a port of the router open for the exchange service. The caller starts and closes it.

    `port`, `hosts`: where the service listens. `wanted`: whether the volunteer allows a request to the router.
    `left_over`: router's port that a former process did not close. 0: none. `keep`: stores the router's port for a
    later process. `told`: receives the open port (0: none) and a sentence on what changed."""
    no_library = missing_library_reason()

    def skip_reason(source: str) -> str:
        if not wanted:
            return "turned off (--no-port-mapping)"
        return no_mapping_reason(hosts, source, private_run=dialler.private_run()) or no_library

    def around() -> Surroundings:
        state, source = reach.reachability, source_address()
        return Surroundings(
            skip_reason=skip_reason(source),
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
    """Return the IPv4 address from which this machine calls into the internet. Empty: it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(OUTSIDE)
        except OSError:
            return ""
        return str(trial.getsockname()[0])


def owns(host: str) -> bool:
    """Return whether an IPv4 address is one of this machine's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            return False
        return True
