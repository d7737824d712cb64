from __future__ import annotations

import socket

import pytest

from peer.discovery.multiaddr import (
    advertised,
    check_announced,
    check_listen,
    check_peers,
    claimed,
    is_dialable,
    is_listenable,
    split,
)
from peer.errors import AddressError

PEER = "12D3KooWRvWgizyF4VPDNkpcjwBiCWfXMfZQzZWK5zSikVSJT3EW"


@pytest.mark.parametrize(
    "address",
    ["/ip4/192.0.2.1/tcp/4001", "/ip6/2001:db8::1/tcp/1", "/dns4/host.example/tcp/65535", "/dns/h/tcp/4001"],
)
def test_full_tcp_addresses_can_be_dialled(address: str) -> None:
    full = f"{address}/p2p/{PEER}"
    assert is_dialable(full)
    assert split(full) == (address, PEER)
    check_peers([full])
    check_announced([address])


@pytest.mark.parametrize(
    "address",
    [
        "",
        "192.0.2.1:4001",
        "/ip4/192.0.2.1/tcp/4001",
        f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/0/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/65536/p2p/{PEER}",
        f"/ip4/2001:db8::1/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER[:-1]}",
        "/ip4/192.0.2.1/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}\n",
    ],
)
def test_other_addresses_cannot(address: str) -> None:
    assert not is_dialable(address)
    with pytest.raises(AddressError) as caught:
        check_peers([address])
    assert caught.value.fix


@pytest.mark.parametrize(
    "address", ["/ip4/192.0.2.1/tcp/0", "/ip4/192.0.2.1/udp/1/quic-v1", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}"]
)
def test_announced_addresses_name_their_port_and_no_peer(address: str) -> None:
    with pytest.raises(AddressError):
        check_announced([address])


@pytest.mark.parametrize(
    "address",
    ["/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/host/tcp/1", "/ip4/1.2.3.4/tcp/70000", "/dns4/h/tcp/1", "0.0.0.0:1"],
)
def test_only_tcp_on_own_ips_can_be_listened_on(address: str) -> None:
    with pytest.raises(AddressError) as caught, claimed([address]):
        pass
    assert address in caught.value.found
    assert not is_listenable(address)
    with pytest.raises(AddressError):
        check_listen(["/ip4/0.0.0.0/tcp/0", address])


def test_port_0_becomes_a_free_port_that_stays_held() -> None:
    with claimed(["/ip4/127.0.0.1/tcp/0"]) as (address,):
        port = int(address.rpartition("/")[2])
        assert port > 0
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("option", [0, socket.SO_REUSEPORT])
def test_a_taken_port_is_named_even_when_its_holder_would_share_it(option: int) -> None:
    with socket.socket() as holder:
        if option:
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"/ip4/127.0.0.1/tcp/{holder.getsockname()[1]}"
        with pytest.raises(AddressError) as caught, claimed([address]):
            pass
        assert address in caught.value.found


def test_loopback_is_told_to_others_only_when_meant_or_alone() -> None:
    loopback, lan, public = "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.5/tcp/1", "/ip4/8.8.8.8/tcp/1"
    anywhere = ["/ip4/0.0.0.0/tcp/1"]
    assert advertised([loopback, lan, public], anywhere) == [public, lan]
    assert advertised([loopback], anywhere) == [loopback]
    assert advertised([loopback, lan], ["/ip4/127.0.0.1/tcp/1", *anywhere]) == [loopback, lan]
