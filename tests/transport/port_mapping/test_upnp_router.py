"""A real router (miniupnpd) behind real NAT, controlled from a home in its own network namespace."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks import upnp_router
from benchmarks.nat_network import Site, internet
from benchmarks.upnp_router import UpnpRouter

pytestmark = [
    pytest.mark.skipif(bool(upnp_router.why_not()), reason=upnp_router.why_not()),
    pytest.mark.processes,
    pytest.mark.nightly,
]
PUBLIC, INNER, NEXT_DOOR, PORT = "45.77.1.1", "192.168.7.10", "192.168.7.11", 41000
WITHIN_S = 40.0
"""Time limit in seconds. Processes start slowly on a busy machine, and the search for an absent router takes long."""


@dataclass
class Holder:
    """The process that holds a port at the router."""

    process: subprocess.Popen[bytes]

    def next(self) -> tuple[int, str]:
        """Wait for the next notification: the open port and the message."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], WITHIN_S)[0], "no news"
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said["port"], said["news"]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WITHIN_S) == 0


@contextmanager
def network(public: str = PUBLIC, external: str = "") -> Iterator[tuple[dict[str, str], UpnpRouter]]:
    """Set up two homes behind a router. `external`: the address that the router claims."""
    with (
        internet([Site("igd", public, (INNER, NEXT_DOOR))]) as hosts,
        upnp_router.upnp_router(hosts["igd"], external=external) as router,
    ):
        yield hosts, router


@contextmanager
def holder_in(namespace: str, lease_s: float) -> Iterator[Holder]:
    words = [sys.executable, "-m", "tests.support.port_holder", str(PORT), "--lease", str(lease_s), "--seen", PUBLIC]
    command = ["ip", "netns", "exec", namespace, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Holder(process)
        finally:
            process.kill()


@contextmanager
def home(public: str = PUBLIC, external: str = "", lease_s: float = 4.0) -> Iterator[tuple[Holder, UpnpRouter]]:
    """Set up a home that requests a port from its router."""
    with network(public, external) as (hosts, router), holder_in(hosts[f"igd/{INNER}"], lease_s) as holder:
        yield holder, router


def wait_until_asked(router: UpnpRouter, times: int) -> None:
    wait_until(lambda: router.times_asked() >= times, router)


def wait_until(holds: Callable[[], bool], router: UpnpRouter) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, router.words[-2000:]
        time.sleep(0.1)


def test_a_port_is_opened_renewed_and_closed_at_the_end() -> None:
    with home() as (holder, router):
        assert holder.next() == (PORT, f"the router at 192.168.7.1 says that it opened port {PORT} of {PUBLIC}")
        wait_until_asked(router, 3)  # the lease is 4 s: without renewal the port would be closed by now
        wait_until(lambda: len(router.opened()) == 1, router)
        assert f"dport {PORT} dnat ip to {INNER}:{PORT}" in router.opened()[0]
        holder.end()
        assert holder.next() == (0, f"the router closed port {PORT}")
        assert router.opened() == []


def test_a_router_that_started_anew_opens_the_port_again() -> None:
    with home() as (holder, router):
        assert holder.next()[0] == PORT
        router.reboot()
        wait_until(lambda: any(f"dport {PORT} " in rule for rule in router.opened()), router)
        holder.end()
        assert router.opened() == []


def test_two_homes_of_one_router_get_a_port_each() -> None:
    with (
        network() as (hosts, router),
        holder_in(hosts[f"igd/{INNER}"], 60.0) as first,
        holder_in(hosts[f"igd/{NEXT_DOOR}"], 60.0) as second,
    ):
        ports = [first.next()[0], second.next()[0]]
        assert len(set(ports)) == 2
        assert PORT in ports, "it went to the first that asked"
        assert len(router.opened()) == 2
        first.end()
        assert len(router.opened()) == 1
        second.end()
        assert router.opened() == []


def test_a_router_with_a_private_address_is_told_to_have_another_before_it() -> None:
    with home("10.9.9.9") as (holder, router):
        port, news = holder.next()
        assert port == 0
        assert "the router said: " in news
        assert "a second router is before it" in news
        assert router.opened() == []


def test_a_router_that_claims_a_foreign_address_is_doubted() -> None:
    with home(external="9.9.9.9", lease_s=60.0) as (holder, router):
        assert f"9.9.9.9 is not the address that others see, {PUBLIC}" in holder.next()[1]
        holder.end()
        assert router.opened() == []


def test_a_network_without_such_a_router_is_told() -> None:
    with home() as (holder, router):
        holder.next()
        router.stop()
        assert holder.next() == (PORT, f"port {PORT} was not renewed: no router in this network answers UPnP")
        assert holder.next()[0] == 0, "the lease is over"
