"""The operator's node must sign the start only once, when enough peers are ready, and only if its key may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.identity import Identity
from peer.membership.statement_sync import StatementSync
from peer.node.operator.start_time import START_DELAY_S, StartTime
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.home import RunFolder
from peer.run.manifest import Manifest
from peer.run.statements.files import FORMER_START
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import delegate

RUN, NOW = RunId(b"r" * 32), 1_700_000_000.0
OPERATOR, NODE = Identity.generate(), Identity.generate()


class Bench:
    """An operator's node and the peers in its directory."""

    def __init__(self, folder: Path, key: Identity = OPERATOR, start: float = 0.0, clock: str = "seconds") -> None:
        self.trains, self.others, self.said = list[PeerRecord](), StatementLog(RUN, OPERATOR.peer_id), list[str]()
        whole = {"format": 1, "name": "w", "operator": OPERATOR.peer_id, "sync": {"clock": clock}, "start": start}
        local = SimpleNamespace(
            folder=RunFolder(folder),
            identity=key,
            me=key.peer_id,
            clock=SimpleNamespace(now=lambda: NOW),
            say=self.said.append,
        )
        self._node = cast(Any, SimpleNamespace(local=local, directory=self, transport=self))
        log = StatementLog.of(RUN, Manifest.model_validate(whole), lambda: NOW)
        self.statements = StatementSync(log, lambda event: None, folder)
        self.made = self.make()

    def make(self) -> StartTime:
        """Return a new `StartTime`, as after a restart of the node."""
        return StartTime(self._node, self.statements, 2)

    def ready(self, count: int) -> None:
        self.trains = [
            PeerRecord(PeerId(f"p{n}"), RUN, (f"p{n}:1",), True, 2, 2, 0, 0.0, Status.TRAINING, NOW, NOW + 60)
            for n in range(count)
        ]

    def settle(self) -> bool:
        return asyncio.run(self.made.settle())

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {record.peer_id: record for record in self.trains}

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        return self.others.papers_beyond(held)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_is_signed_once_when_enough_are_ready_and_kept(bench: Bench, tmp_path: Path) -> None:
    bench.ready(1)
    assert not bench.settle()
    bench.ready(2)
    assert bench.settle()
    assert bench.made.value == NOW + START_DELAY_S
    again = Bench(tmp_path)
    assert again.made.value == NOW + START_DELAY_S
    assert again.statements.log.start == bench.statements.log.start


def test_a_node_that_lost_its_home_takes_the_start_that_the_peers_hold(bench: Bench) -> None:
    bench.others.add(bench.others.sign_start(OPERATOR, NOW - 5000.0, NOW))
    bench.ready(2)
    assert bench.settle()
    assert bench.made.value == NOW - 5000.0


def test_a_node_that_may_not_sign_says_what_to_do_and_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NODE)
    (line,) = bench.said
    bench.ready(2)
    assert not bench.settle()
    assert not bench.settle()
    assert bench.said == [line], "it says so at its start, before a volunteer waits, and once"
    assert f"peer manifest delegate run.toml {NODE.peer_id}" in line
    bench.statements.add_own([delegate(OPERATOR, RUN, NODE.peer_id, ["start"], int(NOW))])
    assert bench.settle()
    signed = bench.statements.log.start
    assert signed is not None
    assert signed.document.by == NODE.peer_id


def test_no_second_start_is_signed_where_the_first_was_taken_back(tmp_path: Path) -> None:
    bench, former = Bench(tmp_path, NODE), Identity.generate()
    for node in (NODE, former):
        bench.statements.add_own([delegate(OPERATOR, RUN, node.peer_id, ["start"], int(NOW) - 9000)])
    bench.statements.add_own([bench.statements.log.sign_start(former, NOW - 5000.0, NOW)])
    assert bench.settle()
    bench.statements.add_own([delegate(OPERATOR, RUN, former.peer_id, [], int(NOW))])
    bench.said.clear()
    bench.ready(2)
    assert not bench.settle()
    assert not bench.settle()
    assert bench.statements.log.start is None, "a run that is under way would begin again"
    (line,) = bench.said
    assert "peer manifest delegate run.toml NODE --start SECONDS" in line
    bench.statements.add_own([bench.statements.log.sign_start(OPERATOR, NOW - 5000.0, NOW)])
    assert bench.settle()


def test_the_start_that_an_earlier_version_kept_is_signed(tmp_path: Path) -> None:
    (tmp_path / FORMER_START).write_text(repr(NOW - 60.0))
    bench = Bench(tmp_path)
    assert bench.made.value == bench.statements.log.start_time == NOW - 60.0
    assert not (tmp_path / FORMER_START).exists()


def test_a_start_in_the_manifest_needs_no_paper(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start=NOW + 500.0)
    bench.ready(2)
    assert bench.settle()
    assert bench.made.value == NOW + 500.0
    assert bench.statements.log.start is None


def test_a_run_in_steps_has_no_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock="steps")
    bench.ready(2)
    assert not bench.settle()
    assert bench.statements.log.start is None
