"""A daemon's statements are fetched from others, refused and counted if invalid, and stored for the next start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from peer.clock.local_time import local_time
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.statement_sync import SELDOM, SOON_S, StatementSync, ensure_admitted
from peer.observe.events import Amended, AmendmentRefused, Event, PaperHeld, PaperRefused
from peer.protocol.messages import MAX_ROUND, PeerId, PeerRecord, RunId, Status
from peer.protocol.policy.amendments import Amendment, Change, describe
from peer.run.statements.kinds import AMENDMENT, PAPER
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import delegate

RUN, CALL_S, SILENT_S = RunId(b"r" * 32), 0.25, 5.0
OPERATOR = Identity.generate()
OTHER = PeerRecord(PeerId("o"), RUN, ("o:1",), True, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 9e5)


class Network:
    """A transport that answers with the papers of another peer, or with given lines."""

    def __init__(self, *lines: bytes, papers: StatementSync | None = None, fails: bool = False) -> None:
        self.lines, self.papers, self.fails = list(lines), papers, fails
        self.asked_at: list[float] = []

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        self.asked_at.append(VirtualClock().now())
        if self.fails:
            raise PartnerLost("gone")
        return self.lines + ([] if self.papers is None else self.papers.on_papers(held))


def sync(heard: list[Event] | None = None, folder: Path | None = None, round_: int = 0, **more: Any) -> StatementSync:
    emit = (lambda event: None) if heard is None else heard.append
    return StatementSync(StatementLog(RUN, OPERATOR.peer_id, **more), emit, folder, lambda: round_)


def ask(ours: StatementSync, network: Network) -> int:
    return run_virtual(ours.fetch_from(cast(Any, network), OTHER, [PAPER]))


def test_a_paper_goes_from_peer_to_peer_and_stays_in_the_home(tmp_path: Path) -> None:
    first, heard = sync(), list[Event]()
    first.add_own([first.log.sign_start(OPERATOR, EPOCH, EPOCH)])
    second = sync(heard, tmp_path)
    assert ask(second, Network(papers=first))
    assert [event.paper for event in heard if isinstance(event, PaperHeld)] == ["start"]
    third = sync()
    assert ask(third, Network(papers=second))
    assert third.log.start_time == EPOCH
    assert sync(folder=tmp_path).log.start_time == EPOCH, "nobody has to be there after a restart"
    assert ask(third, Network(papers=second))
    assert third.log.new_count == 1
    assert not ask(third, Network(fails=True))


def test_a_start_is_described_by_the_date() -> None:
    start = StatementLog(RUN, OPERATOR.peer_id).sign_start(OPERATOR, EPOCH, EPOCH)
    assert start.document.sentence() == f"round 0 begins at {local_time(EPOCH)}"


def test_a_forged_paper_is_refused_counted_and_journaled_once_and_a_good_one_beside_it_counts() -> None:
    forger = StatementLog(RUN, (liar := Identity.generate()).peer_id)
    true = StatementLog(RUN, OPERATOR.peer_id)
    lines = [forger.sign_start(liar, 1.0, EPOCH).line, b"garbage", true.sign_start(OPERATOR, EPOCH, EPOCH).line]
    heard = list[Event]()
    ours = sync(heard)
    for _ in range(3):
        ask(ours, Network(*lines))
    refused = [(event.peer, event.code) for event in heard if isinstance(event, PaperRefused)]
    assert refused == [(OTHER.peer_id, "paper_delegation"), (OTHER.peer_id, "paper")]
    assert ours.refused == {PAPER: 6}
    assert ours.report(EPOCH).refused == 6
    assert ours.log.start_time == EPOCH


def test_two_signed_starts_are_journaled_and_all_hold_the_same() -> None:
    log = StatementLog(RUN, OPERATOR.peer_id)
    early, late = log.sign_start(OPERATOR, EPOCH, EPOCH), log.sign_start(OPERATOR, EPOCH + 60, EPOCH)
    for order in ((early, late), (late, early)):
        heard = list[Event]()
        ours = sync(heard)
        ask(ours, Network(*(paper.line for paper in order)))
        (refused,) = [event for event in heard if isinstance(event, PaperRefused)]
        assert refused.code == "second_start"
        assert ours.log.start_time == EPOCH


def test_a_damaged_file_counts_as_far_as_it_checks(tmp_path: Path) -> None:
    path = tmp_path / "papers.jsonl"
    first = sync(folder=tmp_path)
    first.add_own([first.log.sign_start(OPERATOR, EPOCH, EPOCH)])
    path.write_bytes(path.read_bytes() + b"garbage\n")
    heard = list[Event]()
    assert sync(heard, tmp_path).log.start_time == EPOCH
    assert [event.code for event in heard if isinstance(event, PaperRefused)] == ["kept"]


def test_what_cannot_be_kept_counts_all_the_same(tmp_path: Path) -> None:
    heard = list[Event]()
    ours = sync(heard, tmp_path / "no such folder")
    ours.add_own([ours.log.sign_start(OPERATOR, EPOCH, EPOCH)])
    assert [event.code for event in heard if isinstance(event, PaperRefused)] == ["not_kept"]
    assert ours.log.start_time == EPOCH


def test_the_operators_file_is_read_again(tmp_path: Path) -> None:
    path, node, heard = tmp_path / "run.delegations", Identity.generate(), list[Event]()
    ours = sync(heard)
    ours.read(path)
    path.write_bytes(delegate(OPERATOR, RUN, node.peer_id, ["start"], int(EPOCH)).line + b"\n")
    ours.read(path)
    ours.read(path)
    assert [event.says for event in heard if isinstance(event, PaperHeld)] == [f"{node.peer_id} may sign: start"]


@pytest.mark.parametrize("wants_start", [True, False])
def test_the_start_is_asked_for_often_and_only_until_it_is_known(wants_start: bool) -> None:
    network, every_s = Network(), 5.0
    ours = sync(wants_start=wants_start)

    async def peers() -> dict[PeerId, PeerRecord]:
        return {OTHER.peer_id: OTHER}

    async def scenario() -> None:
        _, papers = duties = ours.duties(cast(Any, network), VirtualClock(), random.Random(0), peers, every_s)
        duties[0].close()
        asking = asyncio.create_task(papers)
        await asyncio.sleep(60.0)
        often = len(network.asked_at)
        ours.add_own([ours.log.sign_start(OPERATOR, EPOCH, EPOCH)])
        await asyncio.sleep(10 * SELDOM * every_s)
        asking.cancel()
        await asyncio.wait({asking})
        assert (often > 60 / SOON_S / 1.3) == wants_start
        assert 5 <= len(network.asked_at) - often <= 14

    run_virtual(scenario())


class AmendmentNetwork:
    """A transport that answers requests for amendments in turn: with this many of the operator's, or by raising."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)
        self._operator = StatementLog(RUN, OPERATOR.peer_id)

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        answer = self._answers.pop(0)
        await asyncio.sleep(SILENT_S if isinstance(answer, PartnerLost) else CALL_S)
        if isinstance(answer, Exception):
            raise answer
        made = [self._operator.amend(OPERATOR, 0, Change.LR_SCALE, "", value=0.5) for _ in range(answer)]
        return [(one.raw, one.signature) for one in made]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([0], [CALL_S]),
        ([1, 0], []),
        ([PartnerLost("gone")], []),
        ([1, PartnerLost("gone after one")], []),
        ([BadPayload(Code.AMENDMENT, "no")], []),
        ([1, BadPayload(Code.AMENDMENT, "no")], []),
    ],
)
def test_only_a_whole_answer_at_once_shows_how_long_a_call_takes(
    answers: list[int | Exception], told: list[float]
) -> None:
    heard: list[float] = []

    async def scenario() -> None:
        network = cast(Any, AmendmentNetwork(*answers))

        async def peers() -> dict[PeerId, PeerRecord]:
            return {OTHER.peer_id: OTHER}

        def answered(peer: PeerId, took_s: float) -> None:
            heard.append(took_s)

        amendments, papers = sync().duties(network, VirtualClock(), random.Random(0), peers, 1000.0, answered)
        papers.close()
        asking = asyncio.create_task(amendments)
        await asyncio.sleep(100.0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    run_virtual(scenario())
    assert heard == pytest.approx(told)


def test_an_amendment_that_came_in_round_27_is_not_told_to_hold_from_round_0() -> None:
    journal = list[Event]()
    held = sync(journal, round_=27)
    held.add_own([held.log.amend(OPERATOR, 0, Change.LR_SCALE, "plateau", value=0.5)])
    assert held.latest(5) == ["amendment 1, from round 27 on: learning rate times 0.5 (plateau)"]
    assert [(event.round, event.change) for event in journal if isinstance(event, Amended)] == [(27, held.latest(5)[0])]
    held.add_own([held.log.amend(OPERATOR, 120, Change.PAUSE, "")])
    assert held.latest(1) == ["amendment 2, from round 120 on: pause"]


def test_an_amendment_of_an_unknown_round_names_no_round() -> None:
    assert describe(Amendment(1, 0, Change.PAUSE, "")) == "amendment 1, from when it was known: pause"


def test_what_no_round_of_the_run_reaches_never_holds() -> None:
    other, log = PeerId(Identity.generate().peer_id), sync(rounds=80).log
    log.amend(OPERATOR, 80, Change.PAUSE, "a slip")
    log.amend(OPERATOR, 2**53, Change.REFOUND, "another", digest="ab" * 32)
    log.amend(OPERATOR, 79, Change.BAN, "", peer=other)
    for round_ in (79, 80, MAX_ROUND):
        now = log.policy(round_)
        assert (now.paused, now.founded, list(now.banned)) == (None, b"", [other])
    assert not log.policy(78).banned


def test_the_operators_own_key_is_never_kept_out() -> None:
    log, me = sync().log, PeerId(OPERATOR.peer_id)
    log.amend(OPERATOR, 0, Change.BAN, "a slip", peer=me)
    log.amend(OPERATOR, 0, Change.REVOKE, "a slip", peer=me)
    assert log.policy(5).kept_out == {}
    ensure_admitted(log.policy(5), me)


def test_what_is_replaced_is_told_so_and_no_page_shows_it() -> None:
    held = sync(rounds=80)
    held.log.amend(OPERATOR, 70, Change.PAUSE, "a slip")
    held.log.amend(OPERATOR, 10, Change.GO_ON, "")
    assert held.latest(5) == ["amendment 1, replaced by 2: pause (a slip)", "amendment 2, from round 10 on: resume"]
    assert [one.number for one in held.newest(5)] == [2]


class Everything(StatementSync):
    """A transport that answers both requests, as another peer does; `banned` gives no papers."""

    banned = False

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        return self.on_amendments(held, head)

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        if self.banned:
            raise PartnerRefused(Code.BANNED, "lies")
        return self.on_papers(held)


@pytest.mark.parametrize("banned", [False, True])
def test_one_log_goes_from_peer_to_peer_and_is_kept_whole(tmp_path: Path, banned: bool) -> None:
    first = Everything(StatementLog(RUN, OPERATOR.peer_id), lambda event: None)
    first.banned = banned
    node = Identity.generate()
    given = delegate(OPERATOR, RUN, node.peer_id, ["digests"], int(EPOCH))
    first.add_own([given, first.log.sign_start(OPERATOR, EPOCH, EPOCH), first.log.amend(OPERATOR, 0, Change.PAUSE, "")])
    first.add_own([first.log.sign_digest(node, 0, b"d" * 32, EPOCH)])
    heard = list[Event]()
    second = sync(heard, tmp_path)
    answers = run_virtual(second.fetch_from(cast(Any, first), OTHER))
    assert answers == (0 if banned else 3), "two about amendments, and one about papers"
    held = list(first.log)[-1:] if banned else list(first.log)
    assert list(second.log) == held
    assert len(heard) == len(held)
    assert list(sync(folder=tmp_path).log) == held


def test_papers_count_beside_amendments_that_do_not_check() -> None:
    first = Everything(StatementLog(RUN, OPERATOR.peer_id), lambda event: None)
    first.add_own([first.log.sign_start(OPERATOR, EPOCH, EPOCH), first.log.amend(OPERATOR, 0, Change.PAUSE, "")])
    heard = list[Event]()
    second = sync(heard)
    second.add_own([second.log.amend(OPERATOR, 0, Change.PAUSE, "another")])
    heard.clear()
    assert run_virtual(second.fetch_from(cast(Any, first), OTHER)) == 0
    assert second.log.start_time == EPOCH
    assert [getattr(event, "code", "held") for event in heard] == ["amendment_fork", "held"]


def test_a_damaged_file_of_amendments_counts_as_far_as_it_checks_and_the_papers_stay(tmp_path: Path) -> None:
    first = sync(folder=tmp_path)
    first.add_own([first.log.sign_start(OPERATOR, EPOCH, EPOCH)])
    first.add_own([first.log.amend(OPERATOR, round_, Change.PAUSE, "") for round_ in (1, 2)])
    kept = tmp_path / AMENDMENT.kept
    kept.write_bytes(kept.read_bytes()[:-30])
    heard = list[Event]()
    again = sync(heard, tmp_path).log
    assert (len(again.chain), again.start_time) == (1, EPOCH)
    (refused,) = heard
    assert isinstance(refused, AmendmentRefused)
    assert refused.code == "kept"
