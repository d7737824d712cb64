"""Which nodes count as holders of a key, and how many calls a calm swarm makes to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from peer.discovery.dht_node.holders import MAX_KEYS, SEARCH_EVERY_S, Holders
from peer.discovery.dht_node.supervisor import SupervisorTimes
from peer.discovery.directory import DhtDirectory
from peer.identity import Identity
from tests.discovery.dht_node.test_dht_node_supervisor import record, run, started, until, until_seen

CALM = SupervisorTimes(heal=0.1, refresh=1e9, alone=0.1)
PEERS = 4


def test_holders_are_asked_until_one_fails_or_a_search_is_due() -> None:
    now = 0.0
    holders: Holders[str] = Holders(lambda: now)
    assert holders.of(b"key") == []
    holders.searched(b"key", ["a", "b"], ["a", "b", "full"])
    assert holders.of(b"key", ["a", "full"]) == ["a", "b"]
    assert holders.of(b"key", ["a", "new"]) == [], "a node that the search did not meet may hold more"
    holders.lost(b"key")
    assert holders.of(b"key") == []
    holders.searched(b"key", ["c"], ["c"])
    now = SEARCH_EVERY_S
    assert holders.of(b"key") == [], "nodes that came nearer meanwhile are found by a search"


def test_the_latest_keys_are_remembered() -> None:
    holders: Holders[str] = Holders(lambda: 0.0)
    for number in range(MAX_KEYS + 1):
        holders.searched(bytes([number]), ["a"], ["a"])
    assert holders.of(bytes([0])) == []
    assert holders.of(bytes([MAX_KEYS])) == ["a"]


class Calls:
    """Counts the calls of one directory to other nodes."""

    def __init__(self, directory: DhtDirectory) -> None:
        node = directory._supervisor.node
        assert node is not None
        self.asked: list[str] = []
        protocol = node._dht.protocol
        for name in ("call_find", "call_store"):
            setattr(protocol, name, self._noting(name, getattr(protocol, name)))

    def _noting(self, name: str, call: Any) -> Any:
        async def noted(*given: Any, **more: Any) -> Any:
            self.asked.append(name)
            return await call(*given, **more)

        return noted

    def take(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.mark.processes
def test_in_a_calm_swarm_a_look_asks_one_node_and_a_record_is_only_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        own = [Identity.generate() for _ in range(PEERS)]
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(started(tmp_path, own[0], pace=CALM))
            directories = [first]
            for identity in own[1:]:
                made = started(tmp_path, identity, pace=CALM, initial_peers=first.addresses())
                directories.append(await stack.enter_async_context(made))
            await until(lambda: all(one.neighbours() == PEERS - 1 for one in directories))
            for directory, identity in zip(directories, own, strict=True):
                await directory.announce(record(identity))
            reader, others = directories[1], [own[0], *own[2:]]
            await until_seen(reader, *others)
            calls = Calls(reader)
            looks, stores = list[list[str]](), list[list[str]]()
            for _ in range(4):  # one of these looks may coincide with a search for nodes
                await reader.peers()
                looks.append(calls.take())
                await reader.announce(record(own[1]))
                stores.append(calls.take())
            assert ["call_find"] in looks
            assert ["call_store"] * (PEERS - 1) in stores
            late = Identity.generate()
            late_one = await stack.enter_async_context(
                started(tmp_path, late, pace=CALM, initial_peers=first.addresses())
            )
            await late_one.announce(record(late))
            await until_seen(reader, late)
            await directories[2].withdraw()
            while own[2].peer_id in await reader.peers():
                calls.take()

    run(scenario())
