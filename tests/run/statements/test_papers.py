"""Papers: who may sign them, and that a log's result does not depend on their order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from peer.errors import BadPayload, ManifestError
from peer.identity import Identity
from peer.protocol.messages import RunId
from peer.protocol.policy.amendments import Change
from peer.run.statements.files import beside, load, write_statements
from peer.run.statements.kinds import (
    BEFORE_ISSUE_S,
    DUTIES,
    PAPER,
    DelegationDocument,
    DigestDocument,
    Duty,
    StartDocument,
)
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement, delegate, open_line, sign

Paper = Statement[Any]
RUN, NOW = RunId(b"r" * 32), 1_700_000_000
OPERATOR, NODE, SOMEBODY = Identity.generate(), Identity.generate(), Identity.generate()


def holding(*papers: Paper) -> StatementLog:
    made = StatementLog(RUN, OPERATOR.peer_id)
    for paper in papers:
        made.add(paper)
    return made


def delegation(*may: Duty, issued: int = NOW, expires: int = 0, to: Identity = NODE) -> Paper:
    return delegate(OPERATOR, RUN, to.peer_id, list(may), issued, expires)


def start(at: float, by: Identity = OPERATOR, given: Paper | None = None) -> Paper:
    return sign(StartDocument(run=RUN.hex(), by=by.peer_id, start=at), by, given)


def resigned(paper: Paper, key: Identity, /, **fields: Any) -> bytes:
    """Return the line of a paper with other fields, signed by another key."""
    raw = json.dumps(json.loads(paper.raw) | fields)
    return json.dumps({"paper": raw, "signature": key.sign(PAPER.domain, raw.encode()).hex()}).encode()


def test_what_is_written_is_read_again() -> None:
    given = delegation("start", "digests", expires=NOW + 60)
    both = holding(given)
    for paper in (given, both.sign_start(NODE, NOW + 5.5, NOW), both.sign_digest(NODE, 7, b"d" * 32, NOW)):
        assert open_line(paper.line, RUN, OPERATOR.peer_id) == paper
        assert len(paper.line) < PAPER.max_line // 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "paper"),
        (b"[]", "paper"),
        (b"[" * 4000, "paper"),
        (b"{}", "paper"),
        (b'{"paper": 1, "signature": ""}', "paper"),
        (b'{"paper": "\\ud800", "signature": ""}', "paper"),
        (b" " * (PAPER.max_line + 1), "paper"),
        (resigned(start(NOW), OPERATOR, start=-1), "paper"),
        (resigned(start(NOW), OPERATOR, start=1e300), "paper"),
        (resigned(start(NOW), OPERATOR, start="now"), "paper"),
        (resigned(start(NOW), OPERATOR, kind="amendment"), "paper"),
        (resigned(start(NOW), OPERATOR, format=2), "paper"),
        (resigned(start(NOW), OPERATOR, more=1), "paper"),
        (resigned(start(NOW), OPERATOR, by="nobody"), "paper"),
        (resigned(start(NOW), OPERATOR, run="0" * 64), "paper_run"),
        (resigned(start(NOW), SOMEBODY), "paper_signature"),
        (start(NOW, SOMEBODY).line, "paper_delegation"),
        (start(NOW, SOMEBODY, delegation("start")).line, "paper_delegation"),
        (start(NOW, NODE, delegation("digests", "invitations")).line, "paper_delegation"),
        (start(NOW, NODE, start(NOW)).line, "paper_delegation"),
        (start(NOW, NODE, delegate(SOMEBODY, RUN, NODE.peer_id, ["start"], NOW)).line, "paper_delegation"),
        (start(NOW - BEFORE_ISSUE_S - 1, NODE, delegation("start")).line, "paper_delegation"),
        (start(NOW + 60, NODE, delegation("start", expires=NOW + 60)).line, "paper_delegation"),
        (start(NOW, OPERATOR, delegation("start")).line, "paper_delegation"),
        (delegate(SOMEBODY, RUN, SOMEBODY.peer_id, ["start"], NOW).line, "paper_delegation"),
    ],
)
def test_what_does_not_check_is_refused(line: bytes, code: str) -> None:
    with pytest.raises(BadPayload) as caught:
        open_line(line, RUN, OPERATOR.peer_id)
    assert caught.value.code == code


def test_a_paper_that_was_changed_is_refused() -> None:
    paper = start(NOW)
    changed = paper.line.replace(b"1700000000", b"1700000001")
    assert changed != paper.line
    with pytest.raises(BadPayload, match="did not sign"):
        open_line(changed, RUN, OPERATOR.peer_id)


def test_a_node_cannot_pass_its_delegation_on() -> None:
    to_another = delegate(NODE, RUN, SOMEBODY.peer_id, ["start"], NOW)
    with pytest.raises(BadPayload):
        open_line(start(NOW, SOMEBODY, to_another).line, RUN, OPERATOR.peer_id)
    chained = sign(to_another.document, NODE, delegation(*DUTIES))
    with pytest.raises(BadPayload, match="did not delegate"):
        open_line(chained.line, RUN, OPERATOR.peer_id)


def test_of_two_starts_one_holds_in_whatever_order_they_come() -> None:
    given = delegation("start")
    nodes, later, earlier = start(NOW - 50, NODE, given), start(NOW + 9.0), start(NOW + 3.0)
    for order in itertools.permutations((nodes, later, earlier)):
        assert holding(*order).start == earlier, "the operator's own before a node's, then the earlier"
    other = start(NOW - 70, NODE, given)
    assert holding(nodes, other).start_time == holding(other, nodes).start_time == NOW - 70


def test_two_starts_are_disputed_and_the_same_one_twice_is_not() -> None:
    one, node = start(NOW), start(NOW, NODE, delegation("start"))
    assert holding(one).disputes(node) == ""
    assert holding(one).disputes(one) == ""
    assert f"the start {NOW:.1f} holds" in holding(one).disputes(start(NOW + 5))
    assert f"the start {NOW:.1f} holds" in holding(start(NOW + 5)).disputes(one)


def test_a_later_delegation_replaces_the_earlier_and_may_take_everything_back() -> None:
    first, last = delegation("invitations"), delegation(issued=NOW + 1)
    for order in ((first, last), (last, first)):
        held = holding(*order)
        assert not held.may(NODE.peer_id, "invitations", NOW)
        assert held.nodes(NOW) == frozenset()
        assert held.signers("invitations", NOW) == [OPERATOR.peer_id]
    assert holding(first).signers("invitations", NOW) == [OPERATOR.peer_id, NODE.peer_id]
    assert holding(first).nodes(NOW) == {NODE.peer_id}


def test_an_expired_delegation_lets_sign_nothing_more_but_the_start_stays() -> None:
    held = holding(delegation("start", "digests", expires=NOW + 60))
    held.add(held.sign_start(NODE, NOW + 5, NOW))
    held.add(held.sign_digest(NODE, 3, b"d" * 32, NOW))
    assert [document.round for document in held.digests(NOW)] == [3]
    assert not held.may(NODE.peer_id, "digests", NOW + 60)
    assert held.digests(NOW + 60) == []
    newcomer = holding(*(open_line(line, RUN, OPERATOR.peer_id) for line in held.papers_beyond(())))
    assert newcomer.start_time == NOW + 5
    with pytest.raises(BadPayload):
        held.sign_digest(NODE, 4, b"d" * 32, NOW + 60)


def test_nobody_signs_what_was_not_delegated() -> None:
    held = holding(delegation("digests"))
    with pytest.raises(BadPayload):
        held.sign_start(NODE, NOW, NOW)
    with pytest.raises(BadPayload):
        held.sign_digest(SOMEBODY, 1, b"d" * 32, NOW)
    assert held.sign_digest(OPERATOR, 1, b"d" * 32, NOW).delegation is None


def test_a_log_is_bounded_and_the_latest_stay() -> None:
    nodes = [Identity.generate() for _ in range(DelegationDocument.most + 3)]
    held = holding(*(delegation("digests", issued=NOW + age, to=node) for age, node in enumerate(nodes)))
    assert held.nodes(NOW) == {node.peer_id for node in nodes[3:]}
    for round_ in (5, 1, 9, 7, 3, 2):
        held.add(held.sign_digest(OPERATOR, round_, b"d" * 32, NOW))
    assert [document.round for document in held.digests(NOW)] == [9, 7, 5, 3][: DigestDocument.most]


def test_one_who_asks_gets_what_it_lacks() -> None:
    given = delegation("start")
    held = holding(given, start(NOW, NODE, given))
    other = holding(given)
    for line in held.papers_beyond(other.paper_digests()):
        other.add(other.open(line))
    assert other.start == held.start
    assert held.papers_beyond(other.paper_digests()) == []


def test_a_file_keeps_them_and_names_the_line_that_does_not_check(tmp_path: Path) -> None:
    path = beside(tmp_path / "run.toml", PAPER)
    assert path.name == "run.delegations"
    held = holding(delegation("start"), start(NOW))
    write_statements(path, held.papers)
    again = holding()
    assert load(path, again) == list(held) == list(again)
    assert load(path, again) == []
    with path.open("ab") as file:
        file.write(b"garbage\n")
    fresh = holding()
    with pytest.raises(ManifestError, match="line 3"):
        load(path, fresh)
    assert fresh.start == held.start
    assert load(tmp_path / "none", holding()) == []


def test_a_node_with_every_duty_amends_nothing() -> None:
    held = holding(delegation(*DUTIES))
    assert held.may(NODE.peer_id, "start", NOW)
    theirs = StatementLog(RUN, NODE.peer_id).amend(NODE, 3, Change.PAUSE, "mine now")
    with pytest.raises(BadPayload) as caught:
        held.open_amendment(theirs.raw, theirs.signature)
    assert caught.value.code == "amendment_signature"
