"""Paths between simulated peers (dialled, punched, relayed, none), and the effect of a relay's cap."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from peer.errors import PartnerLost, RelayBusy
from peer.lab.sim.bandwidth import OWN_SHARE, Pipe
from peer.lab.sim.links import Link, wire_bytes
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.nat import NATS
from peer.lab.sim.network import Network
from peer.lab.sim.paths import PLACES
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.protocol.messages import PathKind, PeerId

A, B, C, D, R, S = map(PeerId, "ABCDRS")
MEGA = 10**6


def network(nat: str = "symmetric", cap: float = 1e5, closed: tuple[PeerId, ...] = (A, B, C, D)) -> Network:
    """Return a network of closed peers and the open peers R and S, which relay."""
    made = Network(link=Link("plain", 1e6, 1e6, 0.01), nats=dict.fromkeys(closed, NATS[nat]), relays={R: cap, S: cap})
    for peer in (*closed, R, S):
        MemoryTransport(made, peer, Nobody(), VirtualClock())  # type: ignore[arg-type]
    return made


class Nobody: ...


def reserve(network: Network, relay: PeerId, *peers: PeerId) -> list[PeerId]:
    """Reserve places for these peers at a relay. Return a list to which each peer is added when it loses its place."""
    lost = list[PeerId]()
    for peer in peers:
        assert network.paths.reserve(relay, peer, lambda peer=peer: lost.append(peer))
    return lost


def played(*calls: Coroutine[Any, Any, Any]) -> list[float]:
    """Return when each of these calls ends. All begin at 0."""

    async def one(call: Coroutine[Any, Any, Any]) -> float:
        await call
        return asyncio.get_running_loop().time()

    async def main() -> list[float]:
        return list(await asyncio.gather(*map(one, calls)))

    return run_virtual(main())


def path(network: Network, caller: PeerId, called: PeerId) -> PathKind | None:
    connection = network.paths.between(caller, called)
    return None if connection is None else connection.way.path


def test_an_open_peer_is_dialled_and_a_closed_one_needs_a_relay() -> None:
    net = network()
    assert path(net, A, R) is PathKind.DIRECT
    assert path(net, R, A) is None
    assert path(net, A, B) is None
    reserve(net, R, B)
    assert path(net, A, B) is PathKind.RELAYED
    assert path(net, B, A) is None, "A holds no place"
    assert net.paths.between(A, B).way.via == R  # type: ignore[union-attr]


def test_routers_that_let_holes_through_are_punched_with_a_relays_help() -> None:
    net = network("port-restricted")
    assert path(net, A, B) is None, "nobody tells them where the other is"
    reserve(net, R, B)
    connection = net.paths.between(A, B)
    assert connection is not None
    assert (connection.way.path, connection.way.via, connection.relay) == (PathKind.PUNCHED, R, None)
    (took,) = played(net.carry(A, B, MEGA, calls=A))
    assert took == pytest.approx(0.02 + wire_bytes(MEGA) / 1e6, rel=0.01), "the relay's cap is not in the way"
    assert net.load(R).relayed == 0


def test_homes_on_one_router_need_nobody() -> None:
    net = network()
    net.paths.put_on_one_router([A, B])
    assert path(net, A, B) is PathKind.DIRECT


def test_a_small_message_goes_by_way_of_the_relay() -> None:
    net = network()
    reserve(net, R, B)
    (took,) = played(net.reach(A, B))
    assert took == pytest.approx(0.04)
    assert (net.load(A).messages, net.load(R).messages) == (1, 1)


def test_a_call_to_a_closed_peer_without_a_relay_never_arrives() -> None:
    with pytest.raises(TimeoutError):
        played(network().reach(A, B, by=3.0))


def test_all_that_passes_a_relay_shares_its_cap_and_leaves_it_once() -> None:
    net = network(cap=1e5)
    reserve(net, R, B, D)
    two = played(net.carry(A, B, MEGA, calls=A), net.carry(B, A, MEGA, calls=A))
    assert two == pytest.approx([2 * wire_bytes(MEGA) / 1e5] * 2, rel=0.01), "both ways of one swap"
    assert net.load(R).relayed == pytest.approx(2 * wire_bytes(MEGA))
    assert net.load(R).up == net.load(R).down == 0, "its own traffic is counted apart"
    four = played(*(net.carry(*way, MEGA, calls=way[0]) for way in ((A, B), (C, D), (A, B), (C, D))))
    assert four == pytest.approx([4 * wire_bytes(MEGA) / 1e5] * 4, rel=0.01)


def test_a_relays_own_transfers_have_what_its_cap_leaves() -> None:
    net = network(cap=4e5)
    reserve(net, R, B)
    own, relayed = played(net.carry(R, S, MEGA), net.carry(A, B, MEGA, calls=A))
    assert own == pytest.approx(wire_bytes(MEGA) / 6e5, rel=0.02)
    assert relayed == pytest.approx(wire_bytes(MEGA) / 4e5, rel=0.02)
    greedy = network(cap=1e9)
    reserve(greedy, R, B)
    own, relayed = played(greedy.carry(R, S, MEGA), greedy.carry(A, B, MEGA, calls=A))
    half = wire_bytes(MEGA) / (OWN_SHARE * 1e6)
    assert [own, relayed] == pytest.approx([half, half], rel=0.03), "half of its line is its own"


def test_the_caller_takes_the_least_busy_relay() -> None:
    net = network()
    reserve(net, R, B, D)
    reserve(net, S, B, D)
    with net.paths.connected(A, B) as one, net.paths.connected(C, D) as other:
        assert {one.relay, other.relay} == {R, S}
        assert net.paths.between(A, B) is one, "a connection stays with its relay"


def test_a_relay_takes_no_swap_that_would_make_its_swaps_too_slow() -> None:
    net = network(cap=1e5)
    reserve(net, R, B, D)
    with net.paths.connected(A, B, needs=3e4):
        with net.paths.connected(A, B, needs=3e4) as again:
            assert again.relay == R, "the other way of the same swap"
        with pytest.raises(RelayBusy, match="1 swaps pass this relay"):
            net.paths.between(C, D, needs=1e4)
        assert path(net, C, D) is PathKind.RELAYED, "small calls pass"
        reserve(net, S, D)
        with net.paths.connected(C, D, needs=3e4) as other:
            assert other.relay == S, "another relay has room"
    with net.paths.connected(C, D, needs=3e4):
        pass


def test_a_relay_that_dies_breaks_what_it_carries_and_all_its_places() -> None:
    net = network()
    lost = reserve(net, R, B, D)

    async def main() -> float:
        carrying = asyncio.create_task(net.carry(A, B, MEGA, calls=A))
        await asyncio.sleep(1.0)
        net.kill(R)
        with pytest.raises(PartnerLost, match="R vanished in the middle"):
            await carrying
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1.0
    assert lost == [B, D]
    assert path(net, A, B) is None
    reserve(net, S, B)
    assert path(net, A, B) is PathKind.RELAYED


def test_a_relay_that_is_cut_off_is_no_way() -> None:
    net = network()
    reserve(net, R, B)

    async def main() -> list[PathKind | None]:
        net.cut(A, B)
        beside = path(net, A, B)
        net.cut(R, B)
        return [beside, path(net, A, B)]

    assert run_virtual(main()) == [PathKind.RELAYED, None], "the way does not lead from A to B"


def test_places_at_a_relay_are_bounded() -> None:
    net = network()
    reserve(net, R, *(PeerId(f"closed {number}") for number in range(PLACES)))
    assert not net.paths.reserve(R, B, lambda: None)
    net.paths.give_back(R, PeerId("closed 0"))
    assert net.paths.reserve(R, B, lambda: None)
    assert not net.paths.reserve(A, B, lambda: None), "a closed peer relays nothing"


def test_sites_share_one_line_each_way() -> None:
    net, there, back = network(), Pipe(1e5), Pipe(1e5)
    net.paths.lines = lambda one, other: {(R, S): (there,), (S, R): (back,)}.get((one, other), ())
    ends = played(net.carry(R, S, MEGA), net.carry(R, S, MEGA), net.carry(S, R, MEGA))
    assert ends[:2] == pytest.approx([2 * wire_bytes(MEGA) / 1e5] * 2, rel=0.01)
    assert ends[2] == pytest.approx(wire_bytes(MEGA) / 1e5, rel=0.01)
