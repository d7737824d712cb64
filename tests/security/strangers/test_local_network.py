"""Machines in a peer's own network are strangers: their announcements are not trusted."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from zeroconf import DNSCache, ServiceStateChange
from zeroconf.asyncio import AsyncServiceInfo

from peer.discovery import lan as lan_module
from peer.discovery.lan import MAX_ASKING, MAX_NAMES, MAX_PEERS, SERVICE, LanPeers, run_tag
from peer.identity import Identity
from peer.protocol.messages import PeerId, RunId
from peer.transport.port_mapping import igd_child
from peer.transport.port_mapping.igd_child import answer, gateways, location_of, search
from tests.transport.port_mapping.test_igd_child import OPEN, FakeIgd

RUN = RunId(b"R" * 32)
HERE, ROUTER = "192.168.7.2", "192.168.7.1"


def anybody() -> PeerId:
    return PeerId(Identity.generate().peer_id)


def announced(peer: PeerId, *hosts: str, port: int = 4810) -> AsyncServiceInfo:
    addresses = [socket.inet_aton(host) for host in hosts]
    return AsyncServiceInfo(
        SERVICE, f"{peer}.{SERVICE}", addresses=addresses, port=port, properties={"run": run_tag(RUN)}
    )


class Answered:
    """The hosts at which keys have answered."""

    def __init__(self) -> None:
        self.hosts: dict[PeerId, set[str]] = {}

    def at(self, peer: PeerId) -> Collection[str]:
        return self.hosts.get(peer, set())


def around(answered: Answered | None = None, host: str = HERE) -> LanPeers:
    return LanPeers(RUN, anybody(), [host], 4810, answered_hosts=(answered or Answered()).at)


def test_invented_names_displace_no_peer_that_has_answered() -> None:
    answered = Answered()
    lan, peer = around(answered), anybody()
    lan._add_announced(peer, announced(peer, "192.168.7.3"))
    answered.hosts[peer] = {"192.168.7.3"}
    with mock.patch("peer.discovery.lan._is_peer", return_value=True):
        for number in range(2 * MAX_PEERS):
            lan._add_announced(PeerId(f"invented {number}"), announced(PeerId(f"invented {number}"), "192.168.7.66"))
    assert len(lan.found) == MAX_PEERS
    assert lan.near()[peer] == ("192.168.7.3:4810",)


def test_a_peer_is_found_though_all_places_are_taken_by_invented_names() -> None:
    lan, peer = around(), anybody()
    for number in range(MAX_PEERS):
        lan._add_announced(PeerId(f"invented {number}"), announced(PeerId(f"invented {number}"), "192.168.7.66"))
    lan._add_announced(peer, announced(peer, "192.168.7.3"))
    assert peer in lan.near()


def test_a_goodbye_that_anybody_can_send_removes_nobody() -> None:
    answered = Answered()
    lan, peer, other = around(answered), anybody(), anybody()
    for one in (other, peer):
        lan._add_announced(one, announced(one, "192.168.7.3"))
    answered.hosts[peer] = {"192.168.7.3"}
    lan._on_goodbye(peer)
    lan._on_goodbye(other)
    assert list(lan.near()) == [other, peer], "the one that never answered goes first when a place is needed"


def test_an_announcement_in_the_name_of_another_replaces_no_address_that_answered() -> None:
    answered = Answered()
    lan, peer = around(answered), anybody()
    lan._add_announced(peer, announced(peer, "192.168.7.3"))
    answered.hosts[peer] = {"192.168.7.3"}
    for last in range(60, 70):
        lan._add_announced(peer, announced(peer, f"192.168.7.{last}"))
    assert lan.near()[peer][0] == "192.168.7.3:4810"


def test_a_peer_that_answers_elsewhere_is_no_neighbour_because_somebody_says_so() -> None:
    """Neighbours are not used to test whether we can be dialled, nor as relays."""
    answered = Answered()
    lan, peer = around(answered), anybody()
    lan._add_announced(peer, announced(peer, "192.168.7.66"))
    assert peer in lan.near(), "it may be, until its key answers"
    answered.hosts[peer] = {"45.77.1.1"}
    assert peer not in lan.near()
    answered.hosts[peer].add("192.168.7.66")
    assert peer in lan.near()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "224.0.0.251", "255.255.255.255", "45.77.1.1"])
def test_an_announced_address_is_one_of_a_machine_of_this_network(host: str) -> None:
    lan, peer = around(), anybody()
    lan._add_announced(peer, announced(peer, host))
    assert not lan.near()
    lan._add_announced(peer, announced(peer, host, "192.168.7.3"))
    assert lan.near() == {peer: ("192.168.7.3:4810",)}


def test_names_without_an_address_keep_no_others_from_being_found() -> None:
    """Resolving a name takes seconds, and few are resolved at once. Honest peers announce their address with the
    name."""

    async def scene() -> None:
        lan, peer = around(), anybody()
        cached = announced(peer, "192.168.7.3")
        zeroconf = mock.Mock()
        zeroconf.cache = DNSCache()
        zeroconf.cache.async_add_records([*cached.dns_addresses(), cached.dns_service(), cached.dns_text()])
        with mock.patch.object(AsyncServiceInfo, "async_request", return_value=False) as asked:
            for name in [*(anybody() for _ in range(20)), peer]:
                lan._changed(zeroconf, SERVICE, f"{name}.{SERVICE}", ServiceStateChange.Added)
            assert list(lan.near()) == [peer]
            await lan.close()
        assert asked.call_count <= MAX_ASKING

    asyncio.run(scene())


# -- the router ------------------------------------------------------------------------------------------------------


def reply(location: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nLocation: {location}\r\nEXT:\r\n\r\n".encode()


@pytest.mark.parametrize(
    "location",
    [
        "http://192.168.7.66:80/admin?reboot=1",
        "http://45.77.9.9/description.xml",
        "http://router.example/description.xml",
        "http://192.168.7.1.example/description.xml",
        "http://192.168.7.1@192.168.7.66/",
        "http://u:p@192.168.7.1/",
        "https://192.168.7.1/description.xml",
        "file:///etc/passwd",
        "http://192.168.7.1:99999/",
        "http://[::1/",
        "http://192.168.7.1/" + 600 * "x",
        "",
    ],
)
def test_a_description_is_fetched_from_the_host_that_answered_alone(location: str) -> None:
    assert location_of(reply(location), ROUTER) == ""


def test_a_routers_description_is_found() -> None:
    assert location_of(reply("http://192.168.7.1:5000/rootDesc.xml"), ROUTER) == "http://192.168.7.1:5000/rootDesc.xml"


@contextmanager
def answering(host: str, location: str) -> Iterator[tuple[str, int]]:
    """Create a machine that answers every search."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind((host, 0))

        def serve() -> None:
            for _ in igd_child.KINDS:
                _, sender = there.recvfrom(2048)
                there.sendto(reply(location), sender)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield there.getsockname()
        finally:
            thread.join()


def test_a_machine_that_is_no_gateway_is_not_asked() -> None:
    with (
        mock.patch.object(igd_child, "SEARCH_S", 0.5),
        answering("127.0.0.9", "http://127.0.0.9:1/description.xml") as there,
    ):
        assert search(None, {"127.0.0.1"}, to=there) == []


def test_a_gateway_is_asked() -> None:
    with (
        mock.patch.object(igd_child, "MOST_LOCATIONS", 1),
        answering("127.0.0.9", "http://127.0.0.9:1/description.xml") as there,
    ):
        assert search(None, {"127.0.0.9"}, to=there) == ["http://127.0.0.9:1/description.xml"]


def test_the_gateways_are_those_of_the_routing_table(tmp_path: Path) -> None:
    table = tmp_path / "route"
    with mock.patch.object(igd_child, "ROUTES", table):
        assert "192.168.7.1" in gateways(), "a system that does not say: any machine of a private network"
        assert "45.77.1.1" not in gateways()
        assert "127.0.0.1" not in gateways()
        table.write_text(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            "eth0\t00000000\t0107A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth0\t0007A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        )
        assert gateways() == {"192.168.7.1"}


@pytest.mark.parametrize("url", ["http://192.168.7.66/ctl", "http://45.77.9.9/ctl", "http://router.example/ctl", ""])
def test_a_description_that_leads_to_another_machine_is_not_followed(url: str) -> None:
    igd = FakeIgd(url=url)
    assert "which is another machine" in answer(OPEN, igd, ["http://192.168.7.1:5000/rootDesc.xml"])["refused"]
    assert igd.entries == {}


def test_a_flood_of_names_ends_the_browser_and_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's browser stores each name for an hour, without a bound: 1,200,000 names take 200 MiB."""
    monkeypatch.setattr(lan_module, "REST_S", 0.05)

    async def scene() -> None:
        lan = around(host="127.0.0.1")
        lan.start()
        assert lan._opening is not None
        await lan._opening
        peer, first = anybody(), lan._browser
        lan._add_announced(peer, announced(peer, "127.0.0.1"))
        try:
            assert first is not None
            for number in range(MAX_NAMES + 2):
                lan._changed(first.zc, SERVICE, f"invented {number}.{SERVICE}", ServiceStateChange.Added)
            assert lan._resting is not None
            await asyncio.wait_for(lan._resting, 20)
            assert lan._browser is not first
            assert first.done
            assert peer in lan.near(), "who was found stays"
        finally:
            await lan.close()

    asyncio.run(scene())
