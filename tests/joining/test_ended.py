"""A peer must believe only the operator's nodes and its own clock on whether the run has ended."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from peer.errors import RunEnded
from peer.identity import Identity
from peer.joining.clock import clock_from
from peer.joining.context import JoinContext
from peer.joining.ended import FIRST_LOOK_S, ensure_not_ended, ensure_round_left, farewell, operator_nodes
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.statement_sync import StatementSync
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.home import RunFolder
from peer.run.manifest import Manifest
from peer.run.statements.files import FORMER_START
from peer.run.statements.log import StatementLog

RUN = RunId(b"r" * 32)
KEY = Identity.generate()
OPERATOR = KEY.peer_id
NODE = Identity.generate().peer_id
TICKET = (f"/ip4/192.0.2.1/tcp/4810/p2p/{NODE}",)
ROUND_S, ROUNDS = 10.0, 20


def manifest(clock: str = "steps", start: float = 0.0) -> Manifest:
    sync = {"clock": clock, "sync_every": ROUND_S}
    train = {"total_rounds": ROUNDS}
    whole = {"format": 1, "name": "w", "operator": OPERATOR, "sync": sync, "train": train, "start": start}
    return Manifest.model_validate(whole)


def record(peer: str, status: Status, round_: int = 0) -> PeerRecord:
    return PeerRecord(PeerId(peer), RUN, (), True, 1, 1, round_, 1.0, status, 0.0, 1e12)


class Directory:
    """A directory with given records, and a given report on the nodes that were dialled."""

    def __init__(self, records: list[PeerRecord], report: DialReport) -> None:
        self._records = [replace(record, endpoints=(f"{record.peer_id}:1",)) for record in records]
        self._report = report

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {one.peer_id: one for one in self._records}

    def contact(self) -> DialReport:
        return self._report


class Shows:
    """A transport over which every peer returns these papers."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        return []

    async def fetch_papers(self, to: PeerRecord, held: list[bytes], timeout_s: float) -> list[bytes]:
        return self._lines


def hear(
    run: Manifest,
    *records: PeerRecord,
    at: float = 0.0,
    folder: Path | None = None,
    offset_s: float | None = 0.0,
    shown: list[bytes] | None = None,
) -> float:
    """Run the check `at` seconds after the epoch of virtual time, and return its duration in seconds."""

    async def ask() -> float:
        clock = VirtualClock()
        await clock.sleep(at)
        context = JoinContext(
            run_id=RUN,
            me=PeerId("me"),
            directory=cast(Any, Directory(list(records), DialReport(clock_offset_s=offset_s))),
            transport=cast(Any, Shows(shown or [])),
            clock=clock,
            say=lambda line: None,
            folder=None if folder is None else RunFolder(folder),
            rng=random.Random(0),
        )
        began = clock.now()
        statements = StatementSync(StatementLog.of(RUN, run, clock.now), lambda event: None)
        await ensure_not_ended(context, run, TICKET, statements)
        return clock.now() - began

    return run_virtual(ask())


@pytest.mark.parametrize("who", [OPERATOR, NODE], ids=["operator", "node"])
@pytest.mark.parametrize(("status", "round_"), [(Status.ENDED, 3), (Status.SERVING, ROUNDS)])
def test_the_operators_nodes_are_believed(who: str, status: Status, round_: int) -> None:
    with pytest.raises(RunEnded, match=f"run w ended after {ROUNDS} rounds") as told:
        hear(manifest(), record(who, status, round_))
    assert "peer export TICKET" in told.value.fix
    assert told.value.exit_code == 18


@pytest.mark.parametrize("clock", ["steps", "seconds"])
def test_what_a_stranger_says_of_the_end_changes_nothing(clock: str) -> None:
    stranger = Identity.generate().peer_id
    lies = [record(stranger, Status.ENDED, ROUNDS), record(stranger, Status.SERVING, ROUNDS)]
    forged = StatementLog(RUN, (liar := Identity.generate()).peer_id).sign_start(liar, 1.0, EPOCH)
    for lie in lies:
        assert hear(manifest(clock), lie, shown=[forged.line]) == 0.0
        assert hear(manifest(clock), lie, record(NODE, Status.SERVING, 5), shown=[forged.line]) == 0.0


@pytest.mark.parametrize("who", [OPERATOR, NODE], ids=["operator", "node"])
def test_in_seconds_the_signed_start_alone_tells_the_end(who: str) -> None:
    over = [record(who, Status.ENDED, ROUNDS), record(who, Status.SERVING, 10**6)]
    for said in over:
        assert hear(manifest("seconds"), said) == 0.0


@pytest.mark.parametrize("source", ["manifest", "home", "paper"])
def test_a_clock_in_seconds_tells_the_end_and_the_last_round(source: str, tmp_path: Path) -> None:
    run = manifest("seconds", EPOCH if source == "manifest" else 0.0)
    if source == "home":
        (tmp_path / FORMER_START).write_text(repr(EPOCH))
    shown = [StatementLog(RUN, OPERATOR).sign_start(KEY, EPOCH, EPOCH).line] if source == "paper" else []
    anybody, end = record("anybody", Status.TRAINING, 5), ROUND_S * ROUNDS
    hear(run, anybody, at=end - 2 * ROUND_S - 0.1, folder=tmp_path, shown=shown)
    with pytest.raises(RunEnded, match="ends after 20 rounds, and a newcomer can do none"):
        hear(run, anybody, at=end - 5.0, folder=tmp_path, shown=shown)
    with pytest.raises(RunEnded, match="ended after 20 rounds"):
        hear(run, anybody, at=end + 0.1, folder=tmp_path, shown=shown)


def test_a_clock_that_was_compared_with_nobodys_counts_only_beyond_its_error() -> None:
    run = manifest("seconds", EPOCH)
    end, error = ROUND_S * ROUNDS, run.limits.max_clock_offset_s
    hear(run, record("x", Status.TRAINING), at=end + error - 3 * ROUND_S, offset_s=None)
    with pytest.raises(RunEnded):
        hear(run, at=end + error + 0.1, offset_s=None)


def test_with_nobody_there_it_does_not_wait_for_long() -> None:
    assert FIRST_LOOK_S <= hear(manifest()) < FIRST_LOOK_S + 1


def test_before_it_trains_a_peer_looks_once_more() -> None:
    steps = manifest()
    ensure_round_left(steps, clock_from(steps, 0.0), ROUNDS - 1, 0.0)
    with pytest.raises(RunEnded, match="ended"):
        ensure_round_left(steps, clock_from(steps, 0.0), ROUNDS, 0.0)
    seconds = manifest("seconds")
    ensure_round_left(seconds, clock_from(seconds, 0.0), 0, 1e12)
    one = replace(clock_from(seconds, 100.0), sync_every=300.0)
    ensure_round_left(seconds, one, 0, 100.5)


def test_who_may_say_it_and_what_a_volunteer_reads_at_the_end() -> None:
    assert operator_nodes(manifest(), TICKET) == {OPERATOR, NODE}
    assert farewell(manifest(), Path("/h")) == (
        "run w ended after 20 rounds; get the model with: peer export /h OUT --format hf"
    )
