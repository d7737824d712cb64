"""A home behind a router that speaks UPnP: real daemons, a real router (miniupnpd), network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import upnp_router
from benchmarks.nat_network import Site, internet
from peer.identity import load_or_create
from peer.lab.localswarm.processes import Daemon
from peer.observe.event_codec import decode
from peer.observe.events import Event, PortMappingChanged, ReachabilityChanged
from peer.run.manifest import write_new
from tests.integration.test_daemons import eventually

pytestmark = [
    pytest.mark.skipif(bool(upnp_router.why_not()), reason=upnp_router.why_not()),
    pytest.mark.processes,
    pytest.mark.nightly,
]
PUBLIC, INNER = "45.77.1.1", "192.168.7.10"
SITES = [Site("upnp", PUBLIC, (INNER,)), Site("open", "45.77.2.1")]
ANY_HOST = ("--host-maddrs", "/ip4/0.0.0.0/tcp/0")
SETTINGS = ["sync.clock=seconds", "sync.sync_every=3", "train.total_rounds=100000", "train.batch=2"]
FOUND_WITHIN_S = 120.0
"""Two daemons start on a busy machine, others find the home closed, and the router is asked."""


@dataclass
class Home:
    """A peer behind the router, and the operator's node, which every peer can dial."""

    router: upnp_router.UpnpRouter
    peer: Daemon
    outside: str
    """A namespace of the internet."""

    async def status(self) -> dict[str, Any]:
        assert self.peer.running, self.peer.log_tail()
        return await self.peer.status() or {}

    def lets_in(self, port: int) -> bool:
        """Return whether a connection from the internet gets through the router."""
        code = f"import socket; socket.create_connection(('{PUBLIC}', {port}), 3)"
        command = ["ip", "netns", "exec", self.outside, sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, check=False, timeout=90).returncode == 0

    def told(self) -> list[tuple[int, str]]:
        """Return the reports on the router: the open port, and the reason."""
        return [(event.port, event.reason) for event in self.events() if isinstance(event, PortMappingChanged)]

    def events(self) -> list[Event]:
        lines = [line for path in sorted(self.peer.home.rglob("journal*")) for line in path.read_bytes().splitlines()]
        return [decode(line)[0] for line in lines]


@contextlib.contextmanager
def network(*, obeys: bool) -> Iterator[tuple[dict[str, str], upnp_router.UpnpRouter]]:
    with internet(SITES) as hosts, upnp_router.upnp_router(hosts["upnp"], obeys=obeys) as router:
        yield hosts, router


@contextlib.asynccontextmanager
async def home(folder: Path, hosts: dict[str, str], router: upnp_router.UpnpRouter) -> AsyncIterator[Home]:
    manifest, ticket = folder / "run.toml", folder / "ticket"
    write_new(manifest, load_or_create(folder / "operator.key"), SETTINGS)
    node, peer = Daemon("node", folder / "node"), Daemon("peer", folder / "peer")
    try:
        words = ("bootstrap", str(manifest), *ANY_HOST, "--ticket-file", str(ticket), "--no-check")
        await node.start(*words, prefix=("ip", "netns", "exec", hosts["open"]))

        async def announced() -> bool:
            assert node.running, node.log_tail()
            return ticket.exists()

        await eventually("a ticket", 180, announced)
        words = (
            "join",
            ticket.read_text().strip(),
            "--yes",
            *ANY_HOST,
            "--port-mapping",
            "--threads",
            "1",
            "--speed",
            "0.1",
        )
        inside = ("ip", "netns", "exec", hosts[f"upnp/{INNER}"])
        await peer.start(*words, prefix=inside, env={"OMP_NUM_THREADS": "1"})
        yield Home(router, peer, hosts["open"])
    finally:
        for daemon in (peer, node):
            await daemon.stop(15.0)


async def a_mapped_home(folder: Path, hosts: dict[str, str], router: upnp_router.UpnpRouter) -> None:
    async with home(folder, hosts, router) as at:

        async def is_mapped() -> dict[str, Any] | None:
            status = await at.status()
            return status if status and status["port_mapping"]["value"] else None

        status = await eventually("the port carries", FOUND_WITHIN_S, is_mapped)
        host, _, port = status["endpoints"][0].rpartition(":")
        assert host == PUBLIC
        assert status["reachable"]["value"] is True
        assert "others get through" in status["port_mapping"]["why"]
        assert [rule for rule in router.opened() if f"dnat ip to {INNER}:" in rule and f"dport {port} " in rule]
        assert await asyncio.to_thread(at.lets_in, int(port))

        await at.peer.stop(15.0)
        assert router.opened() == []
        assert not await asyncio.to_thread(at.lets_in, int(port))
    assert [held for held, _ in at.told()] == [int(port), 0]
    assert at.told()[-1] == (0, f"the router closed port {port}")


def test_a_home_is_mapped_and_gives_the_port_back(tmp_path: Path) -> None:
    with network(obeys=True) as (hosts, router):
        asyncio.run(a_mapped_home(tmp_path, hosts, router))


async def a_lied_to_home(folder: Path, hosts: dict[str, str], router: upnp_router.UpnpRouter) -> None:
    async with home(folder, hosts, router) as at:

        async def is_doubted() -> bool:
            await at.status()
            return any("nobody gets through" in reason for _, reason in at.told())

        await eventually("the lie is found", FOUND_WITHIN_S, is_doubted)
        status = await at.status()
        assert router.opened() != [], "the router says so"
        assert "nobody gets through" in status["port_mapping"]["why"]
        assert status["port_mapping"]["value"] is None
        assert status["reachable"]["value"] is False

        await at.peer.stop(15.0)
        assert router.opened() == []
    assert not [event for event in at.events() if isinstance(event, ReachabilityChanged) and event.reachable]
    assert len([reason for _, reason in at.told() if "nobody gets through" in reason]) == 1, at.told()


def test_a_router_that_lies_opens_nothing(tmp_path: Path) -> None:
    with network(obeys=False) as (hosts, router):
        asyncio.run(a_lied_to_home(tmp_path, hosts, router))
