"""A guest of a run leaves no address behind in routing tables, caches and tickets; nor does a DHT node without a record
of the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path

import pytest

from peer.discovery.address_cache import AddressCache
from peer.discovery.ticket_entries import met_in
from peer.identity import Identity
from peer.protocol.messages import PeerId
from peer.result.model import GuestRequest
from peer.result.remote import ticket as remote
from peer.run.ticket import Ticket
from tests.discovery.dht_node.test_dht_node_supervisor import RUN, record, started, until, until_seen


def peers_in(cache: Path) -> set[str]:
    return {address.rpartition("/")[2] for address in AddressCache(cache, time.time()).addresses()}


@pytest.mark.processes
def test_only_peers_with_a_record_get_into_the_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, peer, other = (Identity.generate() for _ in range(3))
        cache = tmp_path / "directory.json"
        async with contextlib.AsyncExitStack() as stack:
            serving = await stack.enter_async_context(started(tmp_path, node, cache_path=cache))
            ticket = serving.addresses()[:1]
            training = await stack.enter_async_context(started(tmp_path, peer, initial_peers=ticket))
            await stack.enter_async_context(started(tmp_path, other, initial_peers=ticket))
            await training.announce(record(peer))
            await until_seen(serving, peer)
            await until(lambda: serving.neighbours() == 2)
            await until(lambda: peers_in(cache) == {peer.peer_id})
            helper = serving._supervisor
            assert helper.node is not None
            assert {one.rpartition("/")[2] for one in await helper.node.seen_addresses()} == {
                peer.peer_id,
                other.peer_id,
            }
            await helper._learn_addresses(helper.node)
            assert peers_in(cache) == {peer.peer_id}
            assert {one.rpartition("/")[2] for one in met_in(cache)} == {peer.peer_id}

    asyncio.run(asyncio.wait_for(scenario(), 40.0))


@pytest.mark.processes
def test_a_guest_is_in_nobodys_routing_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = tmp_path / "directory.json"
        async with started(tmp_path, Identity.generate(), cache_path=cache) as serving:
            ticket = Ticket(RUN, tuple(serving.addresses()[:1]))
            home = tmp_path / "guest"
            async with remote._guest(ticket, home, GuestRequest(), lambda text: None) as guest:
                await until(lambda: guest.directory.neighbours() == 1)
                guests = {guest.local.me, PeerId(guest.local.proven.peer_id)}
                assert serving.neighbours() == 0
                assert not guests & peers_in(cache)
            assert guest.local.temporary_identity is not None

    asyncio.run(asyncio.wait_for(scenario(), 60.0))


def test_addresses_that_an_earlier_version_kept_are_dialled_and_not_handed_out(tmp_path: Path) -> None:
    cache, now = tmp_path / "directory.json", time.time()
    old = f"/ip4/192.0.2.1/tcp/1/p2p/{Identity.generate().peer_id}"
    cache.write_text(json.dumps({"format": 1, "listened": {}, "peers": [{"address": old, "seen": now - 60}]}))
    kept = AddressCache(cache, now)
    assert kept.addresses() == [old]
    assert met_in(cache) == []
    kept.record_seen([old], now)
    kept.save()
    assert met_in(cache) == [old]
