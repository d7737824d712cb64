"""Makes the network of a simulated swarm from its `SwarmWorld`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from peer.lab.sim.bandwidth import Pipe
from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.network import Network
from peer.lab.sim.process import RUN, KeylessSigner
from peer.lab.sim.setting import Sites, SwarmWorld, number_of, peer_id_of
from peer.protocol.endpoints import block_of
from peer.protocol.messages import PeerId, RelayAttestation
from peer.protocol.swarm.relay_word import sign_attestation


def network_of(world: SwarmWorld, count: int, seed: int) -> Network:
    """Make the network of `count` peers and the operator's nodes. `seed`: of jitter and loss."""
    closed = world.closed
    everywhere, links = (world.links, {}) if isinstance(world.links, Link) else (PROFILES["lan"], world.links or {})
    nodes = () if closed is None else closed.node_ids
    own = {peer_id_of(number): link for number, link in links.items()}
    network = Network(
        link=everywhere,
        links=own if closed is None else own | dict.fromkeys(nodes, closed.node_link),
        dialable=lambda peer: peer in nodes or number_of(peer) not in world.only_dial_out,
        rng=random.Random(seed),
        weight=world.weight,
        nats={} if closed is None else {peer_id_of(number): nat for number, nat in closed.nats.items()},
        relays={} if closed is None else dict.fromkeys(_relays(world, count), closed.relay_cap),
    )
    if closed is not None:
        network.set_addresses(address_of, _word)
        if closed.sites is not None:
            network.paths.share(_lines(closed.sites))
    return network


def _relays(world: SwarmWorld, count: int) -> list[PeerId]:
    assert world.closed is not None
    closed = world.closed
    able = [number for number in range(count) if number not in closed.nats and number not in world.only_dial_out]
    return [*closed.node_ids, *map(peer_id_of, able)]


def address_of(peer: PeerId) -> str:
    """Return the address of a peer, `host:port`. Each peer is in an address block of its own."""
    number, net = number_of(peer), 11 if peer.startswith("node-") else 10
    return f"{net}.{number // 256}.{number % 256}.1:4810"


def _word(relay: PeerId, peer: PeerId, now: float) -> RelayAttestation:
    """Return the statement that an honest relay signs about the address of a closed peer. `now`: seconds since the
    epoch."""
    return sign_attestation(RUN, peer, block_of(address_of(peer)), now, KeylessSigner(relay).sign)


def _lines(sites: Sites) -> Callable[[PeerId, PeerId], Sequence[Pipe]]:
    """Return a function that returns the pipes between two peers: one pipe for each pair of sites and direction, none
    within a site."""
    pipes: dict[tuple[int, int], Pipe] = {}

    def between(sender: PeerId, to: PeerId) -> Sequence[Pipe]:
        here, there = (sites.places.get(number_of(peer), 0) for peer in (sender, to))
        if here == there:
            return ()
        return (pipes.setdefault((here, there), Pipe(sites.between)),)

    return between
