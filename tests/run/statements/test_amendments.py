from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import BadPayload, ManifestError
from peer.identity import Identity
from peer.protocol.messages import PeerId, RunId
from peer.protocol.policy.amendments import Change, RunPolicy, describe, policy_at, superseded
from peer.run.statements.files import beside, load, write_statements
from peer.run.statements.kinds import AMENDMENT
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement, open_document

RUN = RunId(b"r" * 32)
OPERATOR, SOMEBODY = Identity.generate(), Identity.generate()


Parts = tuple[bytes, bytes]
"""A document and its signature."""


def chain() -> StatementLog:
    return StatementLog(RUN, OPERATOR.peer_id)


def extend(log: StatementLog, given: Statement[Any] | Parts) -> bool:
    raw, signature = (given.raw, given.signature) if isinstance(given, Statement) else given
    return log.add(log.open_amendment(raw, signature))


def three() -> StatementLog:
    made = chain()
    made.amend(OPERATOR, 5, Change.LR_SCALE, "plateau", value=0.5)
    made.amend(OPERATOR, 7, Change.BAN, "lies", peer=SOMEBODY.peer_id)
    made.amend(OPERATOR, 9, Change.PAUSE, "")
    return made


def altered(which: int, by: Identity = OPERATOR, **fields: Any) -> Parts:
    """Return amendment `which` of the three with other fields, signed again."""
    body = json.loads(three().chain[which - 1].raw) | fields
    raw = json.dumps(body).encode()
    return raw, by.sign(AMENDMENT.domain, raw)


def test_another_copy_of_the_chain_takes_them_in_order() -> None:
    made, copy = three(), chain()
    for signed in made.chain:
        extend(copy, signed)
    assert copy.amendments == made.amendments
    assert copy.head == made.head != bytes(RUN)


@pytest.mark.parametrize("first", [1, 2])
def test_a_gap_is_refused(first: int) -> None:
    with pytest.raises(BadPayload, match="does not follow") as caught:
        extend(chain(), three().chain[first])
    assert caught.value.code == "amendment_order"


def test_twice_the_same_changes_nothing() -> None:
    made = three()
    assert not extend(made, made.chain[-1])
    assert not extend(made, made.chain[0])
    assert (len(made.chain), made.new_count) == (3, 3)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (altered(1, SOMEBODY), "amendment_signature"),
        (altered(1, run="00" * 32), "amendment_run"),
        (altered(1, previous="00" * 32), "amendment_order"),
        (altered(1, number=2), "amendment_order"),
        (altered(1, number=0), "amendment"),
        (altered(1, value=float("nan")), "amendment"),
        (altered(1, value=-1.0), "amendment"),
        (altered(1, value="0.5"), "amendment"),
        (altered(1, round=-1), "amendment"),
        (altered(1, change="format_the_disk"), "amendment"),
        (altered(1, change="ban", peer="nobody"), "amendment"),
        (altered(1, change="wire", low=3, high=2), "amendment"),
        (altered(1, change="refound", digest=""), "amendment"),
        (altered(1, format=2), "amendment"),
        (altered(1, execute="rm"), "amendment"),
        (altered(1, reason="\x1b[2J"), "amendment"),
        ((b"", b""), "amendment"),
        ((b"[" * 4000, b""), "amendment"),
        ((b" " * (AMENDMENT.max_bytes + 1), b""), "amendment"),
    ],
)
def test_what_does_not_check_is_refused_and_changes_nothing(bad: Parts, code: str) -> None:
    held = chain()
    with pytest.raises(BadPayload) as caught:
        extend(held, bad)
    assert caught.value.code == code
    assert held.chain == []


FAR = 2**53 - 1


def test_no_amendment_binds_the_operator_for_ever() -> None:
    made = three()
    made.amend(OPERATOR, FAR, Change.PAUSE, "a slip")
    made.amend(OPERATOR, 12, Change.GO_ON, "")
    made.amend(OPERATOR, 11, Change.BAN, "now", peer=OPERATOR.peer_id)
    copy = chain()
    for signed in made.chain:
        extend(copy, signed)
    assert copy.amendments == made.amendments
    assert policy_at(copy.amendments, 10).paused == ""
    assert policy_at(copy.amendments, 12).paused is None
    assert policy_at(copy.amendments, FAR).paused is None, "what was replaced never holds"
    assert policy_at(copy.amendments, 11).banned == {SOMEBODY.peer_id: "lies", OPERATOR.peer_id: "now"}
    assert superseded(copy.amendments) == {4: 5}


def test_the_later_of_two_on_one_matter_holds_from_its_round_on() -> None:
    made = chain()
    made.amend(OPERATOR, 100, Change.LR_SCALE, "", value=0.5)
    made.amend(OPERATOR, 60, Change.LR_SCALE, "", value=0.1)
    made.amend(OPERATOR, 100, Change.REFOUND, "a digest that nobody has", digest="ab" * 32)
    made.amend(OPERATOR, 100, Change.REFOUND, "", digest="cd" * 32)
    made.amend(OPERATOR, 100, Change.WIRE, "", low=9, high=9)
    made.amend(OPERATOR, 0, Change.WIRE, "", low=1, high=9)
    scales = {round_: policy_at(made.amendments, round_).lr_scale for round_ in (59, 60, 99, 100, 1000)}
    assert scales == {59: 1.0, 60: 0.1, 99: 0.1, 100: 0.1, 1000: 0.1}
    assert policy_at(made.amendments, 100).founded == b"\xcd" * 32
    assert policy_at(made.amendments, 100).wire == (1, 9)
    assert superseded(made.amendments) == {1: 2, 5: 6}


def test_what_is_said_of_one_peer_replaces_nothing_of_another() -> None:
    made, ada, bob = chain(), SOMEBODY.peer_id, Identity.generate().peer_id
    made.amend(OPERATOR, 100, Change.BAN, "", peer=ada)
    made.amend(OPERATOR, 100, Change.REVOKE, "", peer=ada)
    made.amend(OPERATOR, 50, Change.UNBAN, "", peer=bob)
    assert superseded(made.amendments) == {}
    made.amend(OPERATOR, 50, Change.BAN, "", peer=ada)
    assert superseded(made.amendments) == {1: 4}
    made.amend(OPERATOR, 40, Change.UNBAN, "", peer=ada)
    assert superseded(made.amendments) == {1: 5, 2: 5, 4: 5}
    assert not policy_at(made.amendments, 1000).kept_out


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["pause", "go_on", "lr_scale"])), max_size=8))
def test_without_what_is_replaced_every_round_is_the_same(said: list[tuple[int, str]]) -> None:
    made = chain()
    for number, (round_, change) in enumerate(said, 1):
        more = {"value": float(number)} if change == "lr_scale" else {}
        made.amend(OPERATOR, round_, Change(change), str(number), **more)
    gone = superseded(made.amendments)
    left = [one for one in made.amendments if one.number not in gone]
    for round_ in range(11):
        assert policy_at(left, round_) == policy_at(made.amendments, round_)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with pytest.raises(BadPayload):
        open_document(AMENDMENT, raw, b"", RUN, OPERATOR.peer_id)


def test_who_lacks_some_gets_the_rest() -> None:
    made = three()
    assert made.amendments_after(0, bytes(RUN)) == made.chain
    assert made.amendments_after(2, made.chain[1].digest) == made.chain[2:]
    assert made.amendments_after(3, made.head) == []
    assert made.amendments_after(9, b"?" * 32) == []


def test_the_first_of_two_under_one_number_stays() -> None:
    ours, theirs = three(), chain()
    theirs.amend(OPERATOR, 5, Change.LR_SCALE, "plateau", value=0.5)
    theirs.amend(OPERATOR, 7, Change.PAUSE, "")
    for held, other in ((ours, theirs), (theirs, three())):
        before = list(held.chain)
        given = other.amendments_after(2, held.chain[1].digest)
        assert given == other.chain[1:]
        with pytest.raises(BadPayload, match="two amendments number 2") as caught:
            extend(held, given[0])
        assert caught.value.code == "amendment_fork"
        assert held.chain == before


def test_only_the_operator_can_make_a_fork_known() -> None:
    held = three()
    with pytest.raises(BadPayload) as caught:
        extend(held, altered(2, SOMEBODY, reason="another"))
    assert caught.value.code == "amendment_signature"


def test_what_holds_in_a_round() -> None:
    made = three()
    made.amend(OPERATOR, 9, Change.GO_ON, "")
    made.amend(OPERATOR, 12, Change.UNBAN, "", peer=SOMEBODY.peer_id)
    made.amend(OPERATOR, 12, Change.WIRE, "", low=1, high=2)
    made.amend(OPERATOR, 13, Change.REFOUND, "diverged", digest="ab" * 32)
    assert policy_at(made.amendments, 4) == RunPolicy()
    assert policy_at(made.amendments, 5) == RunPolicy(lr_scale=0.5)
    assert policy_at(three().amendments, 9).paused == ""
    assert policy_at(made.amendments, 9) == RunPolicy(lr_scale=0.5, banned={SOMEBODY.peer_id: "lies"})
    assert policy_at(made.amendments, 13) == RunPolicy(
        lr_scale=0.5, wire=(1, 2), founded=b"\xab" * 32, founded_round=13
    )
    assert policy_at(made.amendments, 12).banned == {}
    for amendment in made.amendments:
        assert f"from round {amendment.round} on" in describe(amendment)


def test_a_ban_without_a_reason_is_a_ban() -> None:
    made = chain()
    made.amend(OPERATOR, 0, Change.BAN, "", peer=SOMEBODY.peer_id)
    assert policy_at(made.amendments, 0).banned[PeerId(SOMEBODY.peer_id)]


def test_in_steps_the_word_to_go_on_holds_at_once() -> None:
    made = chain()
    made.amend(OPERATOR, 5, Change.PAUSE, "")
    made.amend(OPERATOR, 8, Change.LR_SCALE, "", value=0.5)
    paused = policy_at(made.amendments, 5, in_steps=True)
    made.amend(OPERATOR, 9, Change.GO_ON, "")
    made.amend(OPERATOR, 12, Change.PAUSE, "again")
    assert paused.paused == ""
    assert policy_at(made.amendments, 5).paused == ""
    assert policy_at(made.amendments, 5, in_steps=True) == RunPolicy()
    assert policy_at(made.amendments, 11, in_steps=True) == RunPolicy(lr_scale=0.5)
    assert policy_at(made.amendments, 12, in_steps=True).paused == "again"


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    made, read = three(), chain()
    path = beside(tmp_path / "run.toml", AMENDMENT)
    assert path.name == "run.amendments"
    write_statements(path, made.chain)
    assert load(path, read) == made.chain
    assert read.amendments == made.amendments
    assert load(path, read) == []  # nothing new
    assert load(tmp_path / "none", chain()) == []


@pytest.mark.parametrize(
    "damage", [lambda raw: raw.replace(b"0.5", b"0.9"), lambda raw: raw[:-30], lambda raw: b"[1]\n"]
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "run.amendments"
    write_statements(path, three().chain)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ManifestError, match=r"run.amendments, line \d: ") as caught:
        load(path, chain())
    assert caught.value.fix


def test_another_amendment_under_a_number_in_force_is_refused(tmp_path: Path) -> None:
    other, path = chain(), tmp_path / "run.amendments"
    other.amend(OPERATOR, 1, Change.PAUSE, "")
    write_statements(path, other.chain)
    with pytest.raises(ManifestError, match="line 1: the operator signed two amendments number 1"):
        load(path, three())
