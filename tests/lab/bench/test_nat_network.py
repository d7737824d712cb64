"""The routers of `benchmarks.nat_network` behave like those of homes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks.nat_network import Site, dropped, home_site, inside, internet, open_site, why_not

pytestmark = pytest.mark.processes

RELAYS = {name: open_site(name, number, six=True) for number, name in enumerate(("relay", "other"), 1)}
HOME = "192.168.7.2"
SITES = [
    *RELAYS.values(),
    home_site(1, homes=2),
    home_site(2),
    home_site(3, symmetric=True),
    home_site(4, four=False, six=True),
    Site("carrier", "60.9.0.1", gateway="100.64.7.1", homes=("100.64.7.9",)),
    Site("inner", "100.64.7.3", (HOME,), inside="carrier"),
]
PORT = 9000
PATIENCE_S = 0.4
"""Seconds after which a packet counts as lost. No link here delays packets."""


@pytest.fixture(scope="module")
def network() -> Iterator[dict[str, str]]:
    if reason := why_not():
        pytest.skip(reason)
    with internet(SITES) as made:
        yield made


def dialler(namespace: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """Return a socket that shares its local port, as hole punching requires."""
    with inside(namespace):
        made = socket.socket(family)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    made.settimeout(PATIENCE_S)
    made.bind(("", port))
    return made


def seen_at(network: dict[str, str], relay: str, dialling: socket.socket, host: str = "") -> tuple[str, int]:
    """Connect to a relay, and return the address that it sees."""
    with inside(network[relay]):
        server = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    with server:
        dialling.connect((host or RELAYS[relay].public, PORT))
        connection, address = server.accept()
    with connection:
        return address[0].removeprefix("::ffff:"), address[1]


def punch(network: dict[str, str], one: str, other: str) -> bool:
    """Return whether two homes can connect when both dial the other at the address that a relay sees."""
    namespaces = network[one], network[other]
    callers = [dialler(namespace) for namespace in namespaces]
    seen = [seen_at(network, "relay", caller) for caller in callers]
    ports = [caller.getsockname()[1] for caller in callers]
    punchers = [dialler(*end) for end in zip(namespaces, ports, strict=True)]
    errors: list[OSError] = []

    def call(puncher: socket.socket, address: tuple[str, int]) -> None:
        try:
            puncher.connect(address)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=pair) for pair in zip(punchers, reversed(seen), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        if not errors:
            punchers[0].sendall(b"hello")
            assert punchers[1].recv(5) == b"hello"
        assert all(isinstance(error, TimeoutError) for error in errors), "a router answers what it should drop"
        return not errors
    finally:
        for made in (*callers, *punchers):
            made.close()


def ports_seen(network: dict[str, str], home: str) -> tuple[int, list[int]]:
    """Return the local port of a socket, and the ports that two relays see."""
    with dialler(network[home]) as first, dialler(network[home], first.getsockname()[1]) as second:
        return first.getsockname()[1], [seen_at(network, r, s)[1] for r, s in (("relay", first), ("other", second))]


def test_a_router_keeps_the_port_towards_everybody(network: dict[str, str]) -> None:
    local, seen = ports_seen(network, f"home1/{HOME}")
    assert seen == [local, local]


def test_two_homes_of_one_router_with_the_same_port_are_told_apart_alike_everywhere(network: dict[str, str]) -> None:
    with dialler(network[f"home1/{HOME}"]) as first:
        port = first.getsockname()[1]
        assert seen_at(network, "relay", first)[1] == port
        with dialler(network["home1/192.168.7.3"], port) as one, dialler(network["home1/192.168.7.3"], port) as two:
            seen = [seen_at(network, r, s)[1] for r, s in (("relay", one), ("other", two))]
    assert seen[0] == seen[1] != port


def test_a_symmetric_router_draws_a_port_for_each_connection(network: dict[str, str]) -> None:
    local, seen = ports_seen(network, f"home3/{HOME}")
    assert len({local, *seen}) == 3


@pytest.mark.parametrize(
    ("router", "address"), [("home1", "60.1.0.1"), ("home4", "2600:4::2"), ("carrier", "60.9.0.1")]
)
def test_what_nobody_inside_opened_is_dropped_without_an_answer(
    network: dict[str, str], router: str, address: str
) -> None:
    before = dropped(network[router])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with dialler(network["relay"], 0, family) as stranger, pytest.raises(TimeoutError):
        stranger.connect((address, 80))
    assert dropped(network[router]) > before


def test_the_ends_of_two_homes_meet_when_both_call(network: dict[str, str]) -> None:
    assert all(punch(network, f"home1/{HOME}", f"home2/{HOME}") for _ in range(10))


def test_behind_two_routers_too(network: dict[str, str]) -> None:
    assert punch(network, f"inner/{HOME}", f"home2/{HOME}")


@pytest.mark.parametrize(("one", "other"), [("home3", "home2"), ("home2", "home3")])
def test_behind_a_symmetric_router_they_do_not(network: dict[str, str], one: str, other: str) -> None:
    assert not punch(network, f"{one}/{HOME}", f"{other}/{HOME}")


def test_two_homes_of_one_router_meet_at_their_own_addresses(network: dict[str, str]) -> None:
    with inside(network[f"home1/{HOME}"]):
        server = socket.create_server((HOME, PORT))
    with server, dialler(network["home1/192.168.7.3"]) as caller:
        caller.connect((HOME, PORT))


def test_the_outer_router_is_what_others_see(network: dict[str, str]) -> None:
    with dialler(network[f"inner/{HOME}"]) as caller:
        assert seen_at(network, "relay", caller)[0] == "60.9.0.1"


def test_ipv6_is_not_translated(network: dict[str, str]) -> None:
    with dialler(network[f"home4/{HOME}"], 0, socket.AF_INET6) as caller:
        assert seen_at(network, "relay", caller, "2610:1::1")[0] == "2600:4::2"
