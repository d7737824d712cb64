"""Statements signed by a node's key do not count after the operator has revoked it."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, JoinRefused, RunEnded, StartChanged
from peer.identity import Identity
from peer.joining.clock import clock_from
from peer.joining.context import JoinContext
from peer.joining.ended import ensure_not_ended
from peer.joining.invitation import OwnAdmission
from peer.membership.statement_sync import StatementSync
from peer.node.handler import RequestHandler
from peer.node.supervise import ensure_start_holds
from peer.observe.events import Event, PaperRefused
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.admission.invitation import Invitation, InvitedPeers
from peer.run.manifest import Manifest
from peer.run.statements.files import known_start, load
from peer.run.statements.kinds import DUTIES, PAPER, DelegationDocument, DigestDocument, Duty, StartDocument
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement, delegate, open_line, sign
from peer.transport.grpc_transport import GrpcTransport

Paper = Statement[Any]
RUN = RunId(b"V" * 32)
OPERATOR, NODE, STOLEN = (Identity.generate() for _ in range(3))
ROUND_S, ROUNDS, ROUND = 300.0, 7000, 333
LONG_AGO = 7533


def manifest() -> Manifest:
    sync = {"clock": "seconds", "sync_every": ROUND_S}
    whole = {"format": 1, "name": "v", "operator": OPERATOR.peer_id, "sync": sync, "train": {"total_rounds": ROUNDS}}
    return Manifest.model_validate(whole)


NOW = RunClock().now()
BEGAN = NOW - (ROUND + 0.5) * ROUND_S
EARLIER = NOW - (LONG_AGO + 0.5) * ROUND_S
"""The thief's start: by it the run is over."""


def delegation(to: Identity, may: tuple[Duty, ...] = DUTIES, issued: float = EARLIER, expires: float = 0) -> Paper:
    return delegate(OPERATOR, RUN, to.peer_id, list(may), int(issued), int(expires))


def start(at: float, by: Identity, given: Paper | None) -> Paper:
    return sign(StartDocument(run=RUN.hex(), by=by.peer_id, start=at), by, given)


def digest(round_: int, by: Identity, given: Paper | None, of: int = 0) -> Paper:
    document = DigestDocument(run=RUN.hex(), by=by.peer_id, round=round_, digest=bytes([of] * 32).hex())
    return sign(document, by, given)


GIVEN, TRUSTED = delegation(STOLEN), delegation(NODE)
REVOKED = delegation(STOLEN, (), issued=NOW - 60)
TRUE_START, FALSE_START = start(BEGAN, NODE, TRUSTED), start(EARLIER, STOLEN, GIVEN)
FALSE_DIGESTS = [digest(ROUND, STOLEN, GIVEN, of) for of in range(DigestDocument.most)]
FINAL_START = start(BEGAN, OPERATOR, None)


def holding(*papers: Paper) -> StatementLog:
    made = StatementLog.of(RUN, manifest(), lambda: NOW)
    for paper in papers:
        made.add(paper)
    return made


def sync(heard: list[Event] | None = None) -> StatementSync:
    emit = (lambda event: None) if heard is None else heard.append
    return StatementSync(holding(), emit)


class Liar(RequestHandler):
    """Serves the papers of the stolen key, with its former delegation."""

    def on_papers(self, held: Any) -> list[bytes]:
        return [paper.line for paper in (GIVEN, FALSE_START, *FALSE_DIGESTS)]


def honest(*papers: Paper) -> RequestHandler:
    handler, held = RequestHandler(), sync()
    held.add_own(papers)
    handler.register(statements=held)
    return handler


async def visited(held: StatementSync, *handlers: RequestHandler) -> None:
    """Let a newcomer with these papers check over gRPC whether the run continues."""
    now, opened, records = RunClock().now, list[GrpcTransport](), dict[PeerId, PeerRecord]()

    async def peers() -> dict[PeerId, PeerRecord]:
        return records

    try:
        for handler in handlers:
            opened.append(transport := GrpcTransport(key := Identity.generate(), RUN, handler, now))
            where = (f"127.0.0.1:{await transport.start('127.0.0.1', 0)}",)
            me = PeerId(key.peer_id)
            records[me] = PeerRecord(me, RUN, where, True, 1, 3, 1, 1.0, Status.TRAINING, now(), now() + 60)
        opened.append(ours := GrpcTransport(newcomer := Identity.generate(), RUN, RequestHandler(), now))
        directory = SimpleNamespace(peers=peers, contact=lambda: DialReport(clock_offset_s=0.0))
        context = JoinContext(
            run_id=RUN,
            me=PeerId(newcomer.peer_id),
            directory=cast(Any, directory),
            transport=ours,
            clock=RunClock(),
            say=lambda line: None,
        )
        async with asyncio.timeout(90):
            await ensure_not_ended(context, manifest(), (), held)
    finally:
        for transport in opened:
            await transport.close()


def round_by(held: StatementSync) -> int:
    return clock_from(manifest(), known_start(held.log, None)).round_at(NOW)


def test_a_newcomer_that_holds_the_revocation_stays_in_the_runs_round() -> None:
    heard = list[Event]()
    held = sync(heard)
    held.add_own([REVOKED, TRUE_START])
    asyncio.run(visited(held, Liar(), Liar(), Liar()))
    assert round_by(held) == ROUND
    assert held.log.digests(NOW) == []
    assert {event.code for event in heard if isinstance(event, PaperRefused)} == {"paper_delegation"}


def test_a_newcomer_among_thieves_asks_on_before_it_says_that_the_run_is_over() -> None:
    held = sync()
    asyncio.run(visited(held, *[Liar()] * 6, honest(REVOKED, TRUSTED, TRUE_START)))
    assert round_by(held) == ROUND
    alone = sync()
    with pytest.raises(RunEnded):
        asyncio.run(visited(alone, Liar()))
    asyncio.run(visited(alone, Liar(), honest(REVOKED, FINAL_START)))  # still holds the thief's start, and asks again
    assert round_by(alone) == ROUND


@pytest.mark.parametrize("signed", [TRUE_START, FINAL_START], ids=["another node's start", "the operator's start"])
def test_whatever_comes_first_the_same_counts_in_the_end(signed: Paper) -> None:
    true_digest = digest(ROUND - 1, NODE, TRUSTED)
    for order in itertools.permutations((GIVEN, REVOKED, FALSE_START, FALSE_DIGESTS[0], signed, true_digest)):
        held = holding(*order, true_digest)  # offered again, because a digest waits for the start
        assert held.start == signed
        assert [one.by for one in held.digests(NOW)] == [NODE.peer_id]
        lines = held.papers_beyond(())
        assert FALSE_START.line not in lines, "it is handed on to nobody"
        assert FALSE_DIGESTS[0].line not in lines
        assert held.newest_delegation(STOLEN.peer_id) == REVOKED.document


def test_a_peer_that_believed_the_thief_corrects_itself_and_journals_it() -> None:
    heard = list[Event]()
    held = sync(heard)
    held.add_own([TRUE_START, FALSE_START, FALSE_DIGESTS[0]])
    assert round_by(held) == LONG_AGO
    ensure_start_holds(held.log, clock_from(manifest(), held.log.awaited_start()))
    held.add_own([REVOKED])
    assert round_by(held) == ROUND, "the other node's start was kept beside it"
    assert held.log.digests(NOW) == []
    taken = [event.reason for event in heard if isinstance(event, PaperRefused) and event.code == "taken_back"]
    assert len(taken) == 2
    assert all(STOLEN.peer_id in reason for reason in taken)


def test_a_running_peer_stops_for_the_operators_start_alone() -> None:
    held = sync()
    held.add_own([TRUE_START])
    rounds = clock_from(manifest(), held.log.awaited_start())
    held.add_own([FALSE_START])
    ensure_start_holds(held.log, rounds)  # a thief stops nobody
    held.add_own([REVOKED, FINAL_START])
    ensure_start_holds(held.log, rounds)  # the peer goes by the start that the operator signed, so nothing changes
    with pytest.raises(StartChanged, match="round 0 began at"):
        ensure_start_holds(held.log, clock_from(manifest(), EARLIER))


def test_no_start_of_a_node_replaces_the_operators() -> None:
    for order in itertools.permutations((FINAL_START, FALSE_START, TRUE_START)):
        held = holding(*order)
        assert list(held)[-1] == held.start == FINAL_START
        assert held.start_is_final
        assert not held.add(start(EARLIER + 1, STOLEN, GIVEN))


def test_a_narrower_delegation_takes_back_what_it_no_longer_names() -> None:
    held = holding(GIVEN, FALSE_START, digest(0, STOLEN, GIVEN))
    held.add(delegation(STOLEN, ("digests",), issued=NOW - 60))
    assert held.start is None
    assert len(held.digests(NOW)) == 1
    with pytest.raises(BadPayload, match="latest word"):
        held.open(FALSE_START.line)
    held.add(delegation(STOLEN, ("start",), issued=NOW - 30, expires=EARLIER + 1))
    assert held.digests(NOW) == []
    held.add(FALSE_START)
    assert held.start == FALSE_START, "a right that is given again counts for what was signed before"
    held.add(delegation(STOLEN, ("start",), issued=NOW - 20, expires=EARLIER))
    assert held.start is None, "an expiry before the start takes it back"


def test_a_renewed_delegation_keeps_the_start() -> None:
    held = holding(GIVEN, FALSE_START)
    held.add(delegation(STOLEN, issued=NOW, expires=NOW + 90 * 86400))
    assert held.start == FALSE_START
    newcomer = holding(*(open_line(line, RUN, OPERATOR.peer_id) for line in held.papers_beyond(())))
    assert newcomer.start == FALSE_START


@pytest.mark.parametrize("round_", [ROUND + 2, ROUNDS + 1, 2**53])
def test_a_digest_of_a_round_that_nobody_can_have_reached_waits(round_: int) -> None:
    held, far = holding(TRUE_START), digest(round_, NODE, TRUSTED)
    for of in range(9):
        held.add(digest(round_, NODE, TRUSTED, of))
    assert held.digests(NOW) == []
    assert held.add(digest(ROUND, NODE, TRUSTED))
    with pytest.raises(BadPayload) as caught:
        held.open(far.line)
    assert caught.value.code == "paper_round"
    if round_ < ROUNDS:
        later = StatementLog.of(RUN, manifest(), lambda: NOW + 2 * ROUND_S)
        assert later.add(TRUE_START)
        assert later.add(far), "it is offered again, and counts when the run is there"


def test_no_digest_but_that_of_round_0_counts_before_the_start_is_known() -> None:
    held = holding(digest(1, NODE, TRUSTED), digest(0, NODE, TRUSTED))
    assert [one.round for one in held.digests(NOW)] == [0]


def test_with_a_clock_in_steps_no_digest_is_past_the_last_round() -> None:
    whole = {"format": 1, "name": "v", "operator": OPERATOR.peer_id, "sync": {"clock": "steps", "sync_every": 4}}
    held = StatementLog.of(RUN, Manifest.model_validate({**whole, "train": {"total_rounds": 50}}), lambda: NOW)
    assert held.add(digest(50, NODE, TRUSTED))
    assert not held.add(digest(51, NODE, TRUSTED))


def test_no_signer_fills_all_places() -> None:
    true_digest = digest(1, NODE, TRUSTED)
    for order in itertools.permutations((*FALSE_DIGESTS, true_digest)):
        held = holding(TRUE_START, *order)
        assert true_digest.document in held.digests(NOW)
        assert len(held.digests(NOW)) == DigestDocument.most


def test_the_revoked_node_is_no_node_of_the_operator_whoever_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {PeerId(STOLEN.peer_id)}
    held = holding(GIVEN)
    rule = InvitedPeers(held, lambda: NOW, required=True, exempt=named)
    assert rule.refusal(PeerId(STOLEN.peer_id), b"") is None
    held.add(REVOKED)
    assert held.nodes(NOW, named) == frozenset()
    found = rule.refusal(PeerId(STOLEN.peer_id), b"")
    assert found is not None
    assert found[0] == "uninvited"


def test_a_node_is_one_of_the_operator_as_long_as_its_delegation_holds() -> None:
    held = holding(delegation(NODE, expires=NOW))
    assert held.nodes(NOW - 1) == {NODE.peer_id}
    assert held.nodes(NOW) == frozenset()
    assert held.nodes(NOW, [PeerId(NODE.peer_id)]) == {NODE.peer_id}, "the ticket still names it"


def test_invitations_of_a_revoked_key_let_nobody_in_and_those_inside_leave() -> None:
    guest, held = PeerId(Identity.generate().peer_id), holding(GIVEN)
    invitation = Invitation.make(STOLEN, RUN, guest, int(NOW) + 1000)
    rule = InvitedPeers(held, lambda: NOW, required=True)
    own = OwnAdmission(rule, guest, invitation)
    own.ensure()
    assert guest in rule
    held.add(REVOKED)
    assert guest not in rule, "it has the standing of a stranger"
    assert rule.refusal(guest, invitation.raw) is not None
    with pytest.raises(JoinRefused, match="never signed it"):
        own.ensure()


def test_what_an_earlier_version_kept_is_read_without_what_was_taken_back(tmp_path: Any) -> None:
    kept = tmp_path / "papers.jsonl"
    kept.write_bytes(b"".join(paper.line + b"\n" for paper in (REVOKED, FALSE_START, *FALSE_DIGESTS)))
    heard = list[Event]()
    ours = StatementSync(holding(), heard.append, tmp_path)
    assert [paper.document for paper in ours.log] == [REVOKED.document]
    assert heard == []
    ours.add_own([FINAL_START])
    again = holding()
    assert load(kept, again) == [REVOKED, FINAL_START], "and kept without it from here on"


def test_revocations_are_not_pushed_out_by_what_the_thief_shows_again() -> None:
    others = [delegation(Identity.generate(), issued=BEGAN + age) for age in range(DelegationDocument.most)]
    held = holding(REVOKED, *others, GIVEN, FALSE_START)
    assert held.newest_delegation(STOLEN.peer_id) == REVOKED.document
    assert held.start is None
    full = holding(*(delegation(Identity.generate(), issued=NOW + age) for age in range(DelegationDocument.most)))
    full.add(REVOKED)
    full.add(FALSE_START)
    assert full.start is None, "nor where the operator named many nodes since"


def test_papers_fit_the_wire() -> None:
    assert all(len(paper.line) < PAPER.max_line // 2 for paper in (FALSE_START, *FALSE_DIGESTS))
