"""Private addresses are dialled among neighbours only."""

from __future__ import annotations

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.swarm.nearness import Whereabouts, dialable, is_private, seen_hosts, shown

PUBLIC, OTHER = "203.0.113.7", "198.51.100.9"
LAN = "192.168.1.5:4810"
ROUTER = "192.168.1.1:80"


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("172.31.0.1", True),
        ("172.32.0.1", False),
        ("192.168.1.1", True),
        ("100.64.0.1", True),
        ("100.128.0.1", False),
        ("169.254.1.1", True),
        ("0.0.0.0", True),
        ("::1", True),
        ("[fe80::1]", True),
        ("fd00::1", True),
        ("::ffff:10.0.0.1", True),
        ("2001:db8::1", False),
        (PUBLIC, False),
        ("bootstrap", True),
        ("printer.local", True),
        ("node.example.org", False),
    ],
)
def test_what_is_private(host: str, private: bool) -> None:
    assert is_private(host) is private


def test_a_public_record_names_private_addresses_in_a_private_run_alone() -> None:
    ours = ["192.168.1.7:4811", "203.0.113.7:4811", "home.example:4811", "[fe80::1]:4811"]
    assert shown(ours, Whereabouts.of(ours, ticket=["198.51.100.1"])) == tuple(ours[1:3])
    assert shown(ours, Whereabouts.of(ours, ticket=["10.0.0.1", "bootstrap"])) == tuple(ours)


def test_a_strangers_private_addresses_are_not_dialled_by_one_with_a_public_address() -> None:
    here = Whereabouts.of([LAN], seen=[PUBLIC])
    named = [ROUTER, "127.0.0.1:22", "[fe80::1]:1", "printer.local:631", f"{OTHER}:4810", "node.example.org:1"]
    assert dialable(named, here) == (f"{OTHER}:4810", "node.example.org:1")


def test_homes_behind_one_router_meet_by_their_lan_addresses() -> None:
    here = Whereabouts.of([LAN, f"{PUBLIC}:4810"])
    theirs = ("192.168.1.6:4810", f"{PUBLIC}:4811")
    assert dialable(theirs, here) == theirs


def test_machines_of_one_ipv6_network_are_neighbours() -> None:
    here = Whereabouts.of([LAN, "[2001:db8:1:2::5]:4810"])
    theirs = ("192.168.1.6:4810", "[2001:db8:1:2::6]:4810")
    assert dialable(theirs, here) == theirs
    assert dialable(("192.168.1.6:4810", "[2001:db8:1:3::6]:4810"), here) == ("[2001:db8:1:3::6]:4810",)


@pytest.mark.parametrize("ticket", [["127.0.0.1"], ["bootstrap"], ["10.0.0.1", "fd00::1"]])
def test_in_a_run_of_a_private_network_everything_is_dialled(ticket: list[str]) -> None:
    here = Whereabouts.of([LAN, "[2001:db8::1]:1"], ticket=ticket)
    assert dialable([ROUTER, "172.18.0.3:1"], here) == (ROUTER, "172.18.0.3:1")


def test_a_public_ticket_makes_no_private_run() -> None:
    here = Whereabouts.of([LAN], seen=[PUBLIC], ticket=["10.0.0.1", OTHER])
    assert dialable([ROUTER], here) == ()


def test_without_a_public_address_the_own_private_range_is_near() -> None:
    here = Whereabouts.of([LAN])
    assert dialable(["192.168.7.7:1", "10.0.0.1:1", "127.0.0.1:1"], here) == ("192.168.7.7:1",)
    assert dialable(["127.0.0.1:1"], Whereabouts.of(["127.0.0.1:9"])) == ("127.0.0.1:1",)


def test_most_voices_tell_our_public_address_and_one_liar_does_not() -> None:
    words = {PeerId("a"): PUBLIC, PeerId("b"): PUBLIC, PeerId("liar"): OTHER, PeerId("near"): "192.168.1.1"}
    assert seen_hosts(words) == (PUBLIC,)
    assert seen_hosts({**words, PeerId("six"): "2001:db8::1", PeerId("v6"): "2001:db8::1"}) == (PUBLIC, "2001:db8::1")
    assert seen_hosts({PeerId("near"): "127.0.0.1"}) == ()
    assert seen_hosts({PeerId("liar"): OTHER}) == (), "one alone is not believed"


def test_the_word_of_the_tickets_node_counts_alone_and_against_many() -> None:
    node = PeerId("node")
    assert seen_hosts({node: PUBLIC}, {node}) == (PUBLIC,)
    liars = {PeerId(f"liar {number}"): OTHER for number in range(7)}
    assert seen_hosts({**liars, node: PUBLIC}, {node}) == (PUBLIC,)
    assert seen_hosts(liars, {node}) == (OTHER,)
