"""Proven peers are remembered after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.proven_file import KEEP_EVERY_S, ProvenFile
from peer.membership.reputation import Reputation
from peer.observe import events
from peer.protocol.messages import PeerId
from peer.protocol.pair.proven import NEEDED
from peer.protocol.pair.stranger_budget import StrangerBudget

FRIEND, OTHER = PeerId("friend"), PeerId("other")


def prove(file: ProvenFile, peer: PeerId) -> None:
    for _ in range(NEEDED):
        file.peers.accepted(peer)


@pytest.mark.parametrize("how", ["told to end", "killed later"])
def test_proven_peers_outlive_a_restart(tmp_path: Path, how: str) -> None:
    said = list[events.Event]()
    path = tmp_path / "proven.json"
    file = ProvenFile(path, said.append)

    async def main() -> None:
        task = asyncio.create_task(file.run(VirtualClock()))
        await asyncio.sleep(0)
        prove(file, FRIEND)
        if how == "killed later":
            await VirtualClock().sleep(1.5 * KEEP_EVERY_S)
            prove(file, OTHER)
            assert list(ProvenFile(path, said.append).peers) == [FRIEND], "it was kept while the process lived"
        task.cancel()
        await asyncio.wait({task})

    run_virtual(main())
    again = ProvenFile(path, said.append)
    assert FRIEND in again.peers
    assert said == []


@pytest.mark.parametrize("left", [b"{", b'{"format": 9}'])
def test_a_damaged_file_is_told_and_all_are_strangers(tmp_path: Path, left: bytes) -> None:
    said = list[events.Event]()
    path = tmp_path / "proven.json"
    path.write_bytes(left)
    assert list(ProvenFile(path, said.append).peers) == []
    (event,) = said
    assert isinstance(event, events.CheckpointFailed)
    assert "proven" in event.reason


def test_a_full_disk_is_told_and_training_goes_on(tmp_path: Path) -> None:
    said = list[events.Event]()
    file = ProvenFile(tmp_path / "gone" / "proven.json", said.append)

    async def main() -> None:
        task = asyncio.create_task(file.run(VirtualClock()))
        await asyncio.sleep(0)
        prove(file, FRIEND)
        await VirtualClock().sleep(2 * KEEP_EVERY_S)
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})

    run_virtual(main())
    assert [type(event) for event in said] == [events.CheckpointFailed]


def test_a_proven_peer_is_no_stranger_after_a_restart_until_it_is_out_of_favour(tmp_path: Path) -> None:
    file = ProvenFile(tmp_path / "proven.json", lambda event: None)
    prove(file, FRIEND)
    reputation = Reputation(lambda: 100.0, lambda event: None, file)
    reputation.limit_strangers(StrangerBudget(10.0))
    assert not reputation.is_stranger(FRIEND)
    assert reputation.is_stranger(OTHER)
    reputation.penalize(FRIEND, "lost", "its line broke")
    assert FRIEND in reputation.proven, "a crash is no crime"
    reputation.penalize(FRIEND, "digest", "wrong bytes")
    assert FRIEND not in reputation.proven
