"""The table of codes: every code in use is in it, metrics count by it, and unknown codes count as `other`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import pytest

import peer
from peer.codes import Code, code_of, counted_as, rejected
from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerSilent
from peer.observe import events
from peer.observe.counters import EventCounters
from peer.observe.event_codec import decode, encode
from peer.observe.exposition import exposition
from peer.protocol.messages import Verdict
from peer.transport.wire.refusals import REFUSAL_KEY, translate
from peer.v1 import exchange_pb2 as pb
from tests.exchange.pair.test_broken_path import Peer
from tests.prometheus_text import parse

PACKAGE = Path(peer.__file__).parent
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "codes.py"}
LITERAL = re.compile(
    r"""\b(?:(?:BadPayload|PartnerRefused|InvalidRecord|CircuitRefused|RelayFault)\(\s*   # the first argument
    |(?:refuse|turn_away|penalize)\([^(),]*,\s*                                         # the second
    |PartnerSilent\([^()]*,\s*(?="(?:late|silent)")
    |code=)f?"[^"]*\"""",
    re.VERBOSE,
)
"""Matches a string literal in the place of a code."""


def failures(*failed: events.PartnerFailed) -> dict[str, float]:
    """Return label -> value of the samples of `peer_partner_failures_total` after these events, without zeros."""
    counters = EventCounters()
    for event in failed:
        counters.count(event, 0.0)
    family = parse(exposition({"counted": counters.report(0.0)}, "peer").decode())["peer_partner_failures_total"]
    assert len(family.samples) == len(Code), "one for each code, and none besides"
    labels = ((re.sub(r'code="(.*)"', r"\1", label), value) for (_, label), value in family.samples.items())
    return {label: value for label, value in labels if value}


def failed(error: ExchangeError) -> events.PartnerFailed:
    """Return the journal event of a swap with a locked partner that ends with this error."""
    peer = Peer(gone=None)
    peer.fails(error)
    return next(event for event in peer.journal if isinstance(event, events.PartnerFailed))


def refusal(code: str) -> ExchangeError:
    """Return our side's error for a partner's refusal with this code."""
    body = pb.Refusal(code=code, reason="no").SerializeToString()
    trailing = grpc.aio.Metadata((REFUSAL_KEY, body))
    return translate(
        grpc.aio.AioRpcError(grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), trailing), "the partner"
    )


# -- what is counted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PartnerSilent("the partner did not begin"), "late"),
        (PartnerSilent("the partner stopped in the middle", "silent"), "silent"),
        (PartnerLost("the connection broke"), "late"),  # it had kept us
        (BadPayload("have", "it has 9 bytes, 3 of 9 were sent"), "have"),
        (refusal("relay_busy"), "relay_busy"),
        (refusal("taken"), "taken"),
    ],
)
def test_a_failure_counts_under_its_own_name(error: ExchangeError, code: str) -> None:
    event = failed(error)
    assert event.code == code
    assert failures(event) == {code: 1.0}


def test_every_code_counts_under_its_own_name() -> None:
    failed = [events.PartnerFailed(peer="p", round=1, code=code, reason="") for code in Code]
    assert failures(*failed) == {code.value: 1.0 for code in Code}
    assert failures(events.PartnerFailed(peer="p", round=1, code=rejected(Code.NORM), reason="")) == {"bad_payload": 1}


@pytest.mark.parametrize("made_up", ["invented", "LATE", "", "x" * 1000, 'a"} 1\n', "bad_payloads:norm", "\0late"])
def test_the_made_up_code_of_a_stranger_is_kept_and_counts_as_other(made_up: str) -> None:
    event = failed(refusal(made_up))
    assert event.code == made_up[:64]
    assert failures(event, event) == {"other": 2.0}


# -- what is written, and read again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*Code, rejected(Code.LENGTH), code_of("of a newer program")], ids=str)
def test_a_journal_holds_the_text_and_gives_the_code_back(code: Code) -> None:
    event = events.PartnerFailed(peer="p", round=1, code=code, reason="")
    line = encode(event, 1.0)
    assert json.loads(line)["code"] == str(code)
    read, _ = decode(line)
    assert read == event
    assert isinstance(read, events.PartnerFailed)
    assert isinstance(read.code, Code) == isinstance(code, Code)
    assert counted_as(read.code) is counted_as(code)


# -- where codes come from -------------------------------------------------------------------------------------------


def test_no_code_is_raised_as_a_text() -> None:
    """mypy finds such codes in typed code. This test finds them in all code."""
    found = [f"{path}: {text}" for path, source in SOURCES.items() for text in LITERAL.findall(source)]
    assert found == []


def test_every_member_is_raised_somewhere_and_has_a_sentence() -> None:
    raised = {name for source in SOURCES.values() for name in re.findall(r"\bCode\.([A-Z_]+)\b", source)}
    raised |= {Code(verdict).name for verdict in (Verdict.TAKEN, Verdict.REFUSED)}
    assert {code.name for code in Code} == raised | {Code.BAD_PAYLOAD.name, Code.OTHER.name}
    for code in Code:
        assert code.name == code.value.upper()
        assert re.fullmatch(r"[A-Z][^\n|]+\.", code.meaning), code
