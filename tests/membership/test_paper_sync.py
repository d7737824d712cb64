"""A daemon's papers: asked of others, refused and counted when they do not check, kept over restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from peer.errors import PartnerLost
from peer.identity import Identity
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.paper_sync import SELDOM, SOON_S, PaperSync, describe
from peer.observe.events import Event, PaperHeld, PaperRefused
from peer.observe.formatting import local_time
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.papers.paper import delegate
from peer.run.papers.shelf import PaperShelf

RUN = RunId(b"r" * 32)
OPERATOR = Identity.generate()
OTHER = PeerRecord(PeerId("o"), RUN, ("o:1",), True, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 9e5)


class Network:
    """Answers with the papers of one other peer, or with lines of its own."""

    def __init__(self, *lines: bytes, papers: PaperSync | None = None, fails: bool = False) -> None:
        self.lines, self.papers, self.fails = list(lines), papers, fails
        self.asked_at: list[float] = []

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        self.asked_at.append(VirtualClock().now())
        if self.fails:
            raise PartnerLost("gone")
        return self.lines + ([] if self.papers is None else self.papers.lacking(held))


def papers(heard: list[Event] | None = None, path: Path | None = None, **more: Any) -> PaperSync:
    emit = (lambda event: None) if heard is None else heard.append
    return PaperSync(PaperShelf(RUN, OPERATOR.peer_id), path, emit, **more)


def ask(ours: PaperSync, network: Network) -> bool:
    return run_virtual(ours.ask(cast(Any, network), OTHER))


def test_a_paper_goes_from_peer_to_peer_and_stays_in_the_home(tmp_path: Path) -> None:
    first, heard = papers(), list[Event]()
    first.hold([first.shelf.sign_start(OPERATOR, EPOCH, EPOCH)])
    second = papers(heard, tmp_path / "papers.jsonl")
    assert ask(second, Network(papers=first))
    assert [event.paper for event in heard if isinstance(event, PaperHeld)] == ["start"]
    third = papers()
    assert ask(third, Network(papers=second))
    assert third.shelf.start_time == EPOCH
    assert papers(path=tmp_path / "papers.jsonl").shelf.start_time == EPOCH, "nobody has to be there after a restart"
    assert ask(third, Network(papers=second))
    assert third.count == 1
    assert not ask(third, Network(fails=True))


def test_a_start_is_described_by_the_date() -> None:
    start = PaperShelf(RUN, OPERATOR.peer_id).sign_start(OPERATOR, EPOCH, EPOCH)
    assert describe(start) == f"round 0 begins at {local_time(EPOCH)}"


def test_a_forged_paper_is_refused_counted_and_journaled_once_and_a_good_one_beside_it_counts() -> None:
    forger = PaperShelf(RUN, (liar := Identity.generate()).peer_id)
    true = PaperShelf(RUN, OPERATOR.peer_id)
    lines = [forger.sign_start(liar, 1.0, EPOCH).line, b"garbage", true.sign_start(OPERATOR, EPOCH, EPOCH).line]
    heard = list[Event]()
    ours = papers(heard)
    for _ in range(3):
        ask(ours, Network(*lines))
    refused = [(event.peer, event.code) for event in heard if isinstance(event, PaperRefused)]
    assert refused == [(OTHER.peer_id, "paper_delegation"), (OTHER.peer_id, "paper")]
    assert ours.refused == 6
    assert ours.report(EPOCH).refused == 6
    assert ours.shelf.start_time == EPOCH


def test_two_signed_starts_are_journaled_and_all_hold_the_same() -> None:
    shelf = PaperShelf(RUN, OPERATOR.peer_id)
    early, late = shelf.sign_start(OPERATOR, EPOCH, EPOCH), shelf.sign_start(OPERATOR, EPOCH + 60, EPOCH)
    for order in ((early, late), (late, early)):
        heard = list[Event]()
        ours = papers(heard)
        ask(ours, Network(*(paper.line for paper in order)))
        (refused,) = [event for event in heard if isinstance(event, PaperRefused)]
        assert refused.code == "second_start"
        assert ours.shelf.start_time == EPOCH


def test_a_damaged_file_counts_as_far_as_it_checks(tmp_path: Path) -> None:
    path = tmp_path / "papers.jsonl"
    first = papers(path=path)
    first.hold([first.shelf.sign_start(OPERATOR, EPOCH, EPOCH)])
    path.write_bytes(path.read_bytes() + b"garbage\n")
    heard = list[Event]()
    assert papers(heard, path).shelf.start_time == EPOCH
    assert [event.code for event in heard if isinstance(event, PaperRefused)] == ["kept"]


def test_what_cannot_be_kept_counts_all_the_same(tmp_path: Path) -> None:
    heard = list[Event]()
    ours = papers(heard, tmp_path / "no such folder" / "papers.jsonl")
    ours.hold([ours.shelf.sign_start(OPERATOR, EPOCH, EPOCH)])
    assert [event.code for event in heard if isinstance(event, PaperRefused)] == ["not_kept"]
    assert ours.shelf.start_time == EPOCH


def test_the_operators_file_is_read_again(tmp_path: Path) -> None:
    path, node, heard = tmp_path / "run.delegations", Identity.generate(), list[Event]()
    ours = papers(heard)
    ours.read(path)
    path.write_bytes(delegate(OPERATOR, RUN, node.peer_id, ["start"], int(EPOCH)).line + b"\n")
    ours.read(path)
    ours.read(path)
    assert [event.says for event in heard if isinstance(event, PaperHeld)] == [f"{node.peer_id} may sign: start"]


@pytest.mark.parametrize("wants_start", [True, False])
def test_the_start_is_asked_for_often_and_only_until_it_is_known(wants_start: bool) -> None:
    network, every_s = Network(), 5.0
    ours = papers(wants_start=wants_start)

    async def peers() -> dict[PeerId, PeerRecord]:
        return {OTHER.peer_id: OTHER}

    async def scenario() -> None:
        asking = asyncio.create_task(ours.run(cast(Any, network), VirtualClock(), random.Random(0), peers, every_s))
        await asyncio.sleep(60.0)
        often = len(network.asked_at)
        ours.hold([ours.shelf.sign_start(OPERATOR, EPOCH, EPOCH)])
        await asyncio.sleep(10 * SELDOM * every_s)
        asking.cancel()
        await asyncio.wait({asking})
        assert (often > 60 / SOON_S / 1.3) == wants_start
        assert 5 <= len(network.asked_at) - often <= 14

    run_virtual(scenario())
