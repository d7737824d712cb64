"""Every number that a stranger, a member or an operator can send, at its extremes.

Each document goes through its reader and the first code that uses it. It is either rejected with a typed error, or
harmless: no other exception is raised, and accepted values can be planned, scheduled, added up and shown. The fields
come from their declarations (protobuf descriptors, sections of the manifest, literals of a JSON document), so a new
field is tested automatically, or has to be named here."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

from peer.clock.local_time import local_time
from peer.errors import BadPayload, DataError, ManifestError
from peer.joining.contract import contract_of
from peer.methods.cautions import cautions
from peer.observe.status.codec import to_json
from peer.protocol.learning_rate import schedule
from peer.protocol.messages import PeerId, RoundKey, RunId
from peer.protocol.model.layout import TensorSpec
from peer.protocol.round_lengths import slots_before
from peer.protocol.wire.frames import Kind, pack
from peer.run.costs import cost_of, receipt_bounds
from peer.run.description import cost_rows, growth_rows, memory_rows, method_rows, optimizer_rows, round_rows
from peer.run.files.layout_file import format_layout, parse_layout
from peer.run.files.token_index import (
    MAX_SHARD_TOKENS,
    ShardEntry,
    ShardTable,
    TokenIndex,
    format_index,
    parse_index,
    shard_bytes,
)
from peer.run.load import bytes_a_day, line_load, upload_need
from peer.run.manifest import SignedManifest, default_text, derive, parse_manifest
from peer.run.memory import activation_bytes, memory_need
from peer.run.options import PeerOptions
from peer.run.overrides import SECTIONS, TOP, dump, fields_of
from peer.run.resolve import resolve
from peer.run.schema import FORMAT, Manifest
from peer.run.statements.log import StatementLog
from peer.signed_start import DOMAIN as START_DOMAIN
from peer.signed_start import START_NONCE_BYTES, open_start
from peer.signed_summary import InvalidSummary, unseal_summary
from peer.transport.calls.discard import _count
from peer.transport.calls.receipts import receipt_of, receipt_request_of
from peer.transport.server.dial_back import DialBack
from peer.transport.wire.refusals import MAX_ETA_S, eta_of
from peer.v1 import exchange_pb2 as pb
from tests.fuzz.directory import signed as signed_record
from tests.fuzz.summaries import _signed as signed_summary_body
from tests.fuzz.targets import target
from tests.fuzz.wire import NOW, OWNER, RUN
from tests.run.test_sections_of_artifacts import FOREIGN
from tests.support.seeds import nightly
from tests.support.signed_receipts import RUN as OTHER_RUN
from tests.support.summaries import SetClock, view_at

INTEGERS = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
SIGNED = (*INTEGERS, -1, -(2**31), -(2**53), -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 2.0**53, 1e18, 1e300, 1.7e308, math.inf, -math.inf, math.nan)
LITERALS = (*map(str, SIGNED), "-0.0", "1e-300", "1e18", "1e300", "1e999", "-1e999", "9" * 400)

# -- messages ----------------------------------------------------------------------------------------------------------

INTEGRAL = {
    Field.TYPE_UINT32: (0, 2**32),
    Field.TYPE_FIXED32: (0, 2**32),
    Field.TYPE_UINT64: (0, 2**64),
    Field.TYPE_FIXED64: (0, 2**64),
    Field.TYPE_INT32: (-(2**31), 2**31),
    Field.TYPE_SINT32: (-(2**31), 2**31),
    Field.TYPE_INT64: (-(2**63), 2**63),
    Field.TYPE_SINT64: (-(2**63), 2**63),
}
FLOATING = (Field.TYPE_DOUBLE, Field.TYPE_FLOAT)


def values_of(field: Field) -> list[float]:
    """Return the extremes of a field; empty: it is not a number."""
    if field.type in FLOATING:
        return [value for value in FLOATS if field.type == Field.TYPE_DOUBLE or not 3e38 < abs(value) < math.inf]
    if field.type not in INTEGRAL:
        return []
    low, high = INTEGRAL[field.type]
    return [value for value in SIGNED if low <= value < high]


def numbers_in(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield copies of `message` with each number, also in nested messages, set to each extreme, and the number's name:
    `Message.field`."""
    for field in message.DESCRIPTOR.fields:
        for value in values_of(field):
            changed = type(message)()
            changed.CopyFrom(message)
            if field.is_repeated:
                getattr(changed, field.name)[:] = [value]
            else:
                setattr(changed, field.name, value)
            yield f"{message.DESCRIPTOR.name}.{field.name}", changed
        if field.type != Field.TYPE_MESSAGE:
            continue
        if field.is_repeated:
            for at, part in enumerate(getattr(message, field.name)):
                for name, inner in numbers_in(part):
                    changed = type(message)()
                    changed.CopyFrom(message)
                    getattr(changed, field.name)[at].CopyFrom(inner)
                    yield name, changed
        elif message.HasField(field.name):
            for name, inner in numbers_in(getattr(message, field.name)):
                changed = type(message)()
                changed.CopyFrom(message)
                getattr(changed, field.name).CopyFrom(inner)
                yield name, changed


def plays(name: str, wrap: Callable[[bytes], bytes] = bytes) -> tuple[Callable[[bytes], object], tuple[Any, ...]]:
    """Return the reader of a fuzz target, wrapped by `wrap`, and its typed errors."""
    made = target(name)
    return lambda raw: made.run(wrap(raw)), made.refuses


def framed(raw: bytes) -> bytes:
    return pack(Kind.OPEN, 0, raw)


def start_of_our_key(raw: bytes) -> None:
    """Process the start of a second daemon with our key, as `peer.membership.key_watch` does."""
    message = pb.SignedStart(body=raw, signature=OWNER.sign(START_DOMAIN, raw))
    claim = open_start(message.SerializeToString(), RunId(RUN), OWNER.public_key)
    if claim is not None:
        assert local_time(claim.began_at).isprintable()


def eta(read: Callable[[bytes], float]) -> Callable[[bytes], None]:
    def run(raw: bytes) -> None:
        assert 0 <= eta_of(read(raw)) < MAX_ETA_S

    return run


def probe(raw: bytes) -> None:
    """Dial a caller back on the port that it names."""
    dialled = list[str]()

    async def dial(peer: PeerId, endpoint: str, timeout_s: float) -> str:
        dialled.append(endpoint)
        return ""

    request = pb.ProbeRequest.FromString(raw)
    prober = DialBack(dial, lambda: NOW)
    asyncio.run(prober.probe(PeerId("a"), "192.0.2.1", list(request.endpoints), request.port))
    assert all(0 < int(endpoint.rpartition(":")[2]) < 65536 for endpoint in dialled)


def amendments_since(raw: bytes) -> None:
    request = pb.AmendmentsRequest.FromString(raw)
    assert len(StatementLog(RunId(RUN), OWNER.peer_id).amendments_after(request.held, request.head)) == 0


def run_view_of(raw: bytes) -> None:
    """Process a summary as a node of the run does, and render the run."""
    said, view = signed_summary_body(raw), view_at(SetClock())
    view.on_summary(unseal_summary(said, OTHER_RUN).peer_id, "home", said)
    view.tick()
    json.dumps(to_json(view.report()), allow_nan=False)


def first_of(name: str, at: int = 0) -> bytes:
    return target(name).corpus[at]


def body_of(raw: bytes) -> bytes:
    found: bytes = pb.SignedRecord.FromString(raw).body  # the signed envelopes of records and summaries are alike
    return found


OPINION = pb.SwapOpinion(tokens=5, accepted=True, gain=3)
RECEIPT = pb.ReceiptRequest(round=3, fragment=0, opinion=OPINION, signature=b"s" * 64)
RECEIPT_REPLY = pb.ReceiptReply(opinion=OPINION, signature=b"s" * 64)
STARTED = pb.StartBody(run_id=RUN, nonce=b"n" * START_NONCE_BYTES, began_at=NOW)
OFFER = pb.OfferRequest(round=3, fragment=0, eta_s=2.0)
JOIN = pb.JoinRoundRequest.FromString(first_of("join-asked"))
JOIN.given_roster = b"r" * 32
JOIN.given.add(shard=1, digest=b"d" * 32, signature=b"s" * 64)
CONTRIBUTION = pb.ContributeOpen(roster=b"r" * 32, shard=2, tokens=1000, nbytes=4096, transfer=5, have=3)
READERS: list[tuple[Message, Callable[[bytes], object], tuple[Any, ...]]] = [
    (pb.RecordBody.FromString(body_of(first_of("record"))), *plays("record", signed_record)),
    (STARTED, start_of_our_key, ()),
    (pb.HelloRequest.FromString(first_of("hello", 1)), *plays("hello")),
    (pb.HelloReply.FromString(first_of("hello-reply")), *plays("hello-reply")),
    (pb.HelloReply.FromString(first_of("hello-reply", 1)), *plays("hello-reply")),
    (pb.Refusal(code="busy", reason="because", eta_s=2.0), *plays("refusal")),
    (OFFER, eta(lambda raw: pb.OfferRequest.FromString(raw).eta_s), ()),
    (pb.OfferReply(verdict="later", eta_s=2.0), eta(lambda raw: pb.OfferReply.FromString(raw).eta_s), ()),
    (pb.ProbeRequest(port=4000), probe, ()),
    (pb.AmendmentsRequest(held=0), amendments_since, ()),
    (pb.StateReply.FromString(first_of("state-index")), *plays("state-index")),
    (pb.SwapOpen(round=7, codec="bf16", nbytes=300, max_rate=1e5), *plays("swap-open", framed)),
    (pb.PieceRequest.FromString(first_of("piece-request", 1)), *plays("piece-request")),
    (JOIN, *plays("join-asked")),
    (pb.HeldReply.FromString(first_of("held")), *plays("held")),
    (RECEIPT, lambda raw: receipt_request_of(pb.ReceiptRequest.FromString(raw)), (BadPayload,)),
    (RECEIPT_REPLY, lambda raw: receipt_of(pb.ReceiptReply.FromString(raw), RoundKey(1, 0)), (BadPayload,)),
    (pb.ReserveReply.FromString(first_of("reserve-reply", 2)), *plays("reserve-reply")),
    (pb.SummaryBody.FromString(body_of(first_of("summary"))), run_view_of, (InvalidSummary,)),
    (CONTRIBUTION, *plays("contribution", framed)),
    (pb.ContributeReply(step="result", nbytes=4096, named=[0, 2], max_rate=1e5), *plays("owners-answer", framed)),
    (pb.DiscardReply(nbytes=7), lambda raw: _count(raw, 4096), (BadPayload,)),
]
UNREAD = {
    "HeldRequest.fragment": "`MemberGroups.on_held` answers None beyond its fragments",
    "RelayRequest.needs": "`calls.relay.serve` takes a value out of range for 0",
}
"""Numbers that have no reader here, and why none is needed."""


def test_every_number_of_every_message_is_played() -> None:
    declared = {
        f"{message.name}.{field.name}"
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if values_of(field)
    }
    played = {name for message, _, _ in READERS for name, _ in numbers_in(message)}
    assert declared - played == UNREAD.keys()


@pytest.mark.parametrize(("message", "read", "refuses"), READERS, ids=[row[0].DESCRIPTOR.name for row in READERS])
def test_a_message_is_refused_or_harmless(
    message: Message, read: Callable[[bytes], object], refuses: tuple[type[Exception], ...]
) -> None:
    read(message.SerializeToString())
    for name, changed in numbers_in(message):
        try:
            read(changed.SerializeToString())
        except (DecodeError, *refuses):
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {changed}: {error!r}") from error


# -- manifests ---------------------------------------------------------------------------------------------------------

BASES = (
    ("sync.clock=seconds",),
    ("sync.clock=steps", "sync.sync_every=20", "sync.preset=streaming-diloco"),
    ("sync.preset=gasloc",),
    ("sync.preset=qsr",),
    ("optimizer.kind=muon",),
    (),
)
"""Settings of the default manifest. Empty: that of a foreign model, with tokens and a tokenizer of its own."""
FILES = ("model.config", "model.layout", "tokenizer.file", "data.index")


def numeric_fields() -> Iterator[str]:
    """Yield `section.field` for each number of a manifest, for every type of section. Both numbers of a change of
    `sync.growth` count as fields."""
    yield from (f"{file}.size" for file in FILES)
    for name, kind in TOP.items():
        if kind in ("int", "float"):
            yield name
    for section in SECTIONS:
        for name, field in fields_of(section).items():
            if (section, name) == ("sync", "growth"):
                yield from ("sync.growth.round", "sync.growth.length")
            elif _is_number(field.annotation):
                yield f"{section}.{name}"


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_number(part) for part in get_args(annotation))


def used(manifest: Manifest, signed: SignedManifest, options: PeerOptions) -> None:
    """Use the manifest as preflight, consent, `peer manifest show`, the round clock and the trainer's schedule do."""
    method = resolve(manifest.sync)
    rounds, total = manifest.rounds, manifest.train.total_rounds
    cost = cost_of(manifest.model, method)
    rows = [*method_rows(manifest.sync), *round_rows(method, rounds, total), *growth_rows(method)]
    rows += [*optimizer_rows(manifest, None), *cost_rows(method, cost), *memory_rows(cost, memory_need(manifest))]
    assert all("nan" not in value for _, value, _ in rows), rows
    dict(cautions(method, rounds))
    bytes_a_day(method, cost.bytes_per_sync)
    line_load(manifest, method)
    upload_need(manifest, method)
    receipt_bounds(method, cost.parameters, rounds)
    activation_bytes(manifest, 2**34)
    contract = contract_of(signed, options, "", start=manifest.start)
    assert all(line.isprintable() for line in contract.lines())
    clock = method.round_clock(manifest.start)
    for round_ in (0, rounds // 2, rounds - 1):
        assert clock.fragment_due(round_) < method.fragments
        if clock.kind == "steps":
            assert clock.steps_of(round_) >= 0
        else:
            assert math.isfinite(clock.due_at(round_))
            clock.round_at(NOW)
        begun = slots_before(clock.growth, round_)
        chosen = manifest.optimizer
        factor = schedule(
            min(1.0, begun / total),
            chosen.warmup_fraction,
            chosen.final_fraction,
            chosen.schedule,
            chosen.decay_fraction,
        )
        assert 0 <= factor <= 1


@cache
def table_of(base: tuple[str, ...]) -> dict[str, Any]:
    text = derive(default_text(OWNER.peer_id), base) if base else FOREIGN
    return tomllib.loads(text) | {"format": FORMAT}


def with_literal(base: tuple[str, ...], field: str, literal: str) -> bytes:
    """Return the text of a manifest in which a field has this literal."""
    place, (*sections, name) = copy.deepcopy(table_of(base)), field.split(".")
    table = place
    if field.startswith("sync.growth."):
        table.setdefault("sync", {})["growth"] = [["@here@", 2]] if name == "round" else [[1, "@here@"]]
    else:
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = "@here@"
    return dump(table).replace('"@here@"', literal).encode()


def edges_of(field: str) -> list[str]:
    """Return the bounds that a field declares."""
    section, _, name = field.rpartition(".")
    if section not in SECTIONS:
        return []
    declared = fields_of(section)[name]
    found = [declared, *get_args(declared.annotation)]
    edges = [edge for one in found for edge in re.findall(r"(?:ge|gt|le|lt)=([-+.\de]+)", repr(one))]
    return [text for edge in edges for text in (edge, str(float(edge)))]


FIELDS = list(numeric_fields())


@pytest.mark.parametrize("field", [*FIELDS[::4], *nightly(field for field in FIELDS if field not in FIELDS[::4])])
def test_a_number_of_a_manifest_is_refused_or_can_be_planned_and_shown(field: str, tmp_path: Path) -> None:
    options = PeerOptions(home=tmp_path, run_id=RunId(RUN))
    accepted = 0
    for base in BASES:
        for literal in (*LITERALS, *edges_of(field)):
            raw = with_literal(base, field, literal)
            try:
                manifest = parse_manifest(raw)
            except ManifestError:
                continue
            accepted += 1
            try:
                used(manifest, SignedManifest(raw, b""), options)
            except ManifestError:
                continue
            except Exception as error:
                raise AssertionError(f"{field}={literal} with {base}: {error!r}") from error
    assert accepted, "nothing was accepted: the field may not be set at all"


# -- documents in JSON -------------------------------------------------------------------------------------------------

TENSORS = [TensorSpec("wte.weight", (50, 10)), TensorSpec("h.0.w", (20, 20), "bfloat16")]
INDEX = TokenIndex("uint16", 500, 499, "ab" * 32, *(ShardTable([ShardEntry(d * 64, 900, 3, 4000)]) for d in "cd"))
"""A valid token index of a run."""


def index(raw: bytes) -> None:
    """Read the index of a run's shards. The trainer divides by its bytes and tokens, whatever they are."""
    found = parse_index(raw)
    for entry in (*found.train, *found.holdout):
        assert min(entry.tokens, entry.documents, entry.text_bytes) > 0
        assert 0 < shard_bytes(found, entry) <= 4 * MAX_SHARD_TOKENS


def of_targets(*names: str) -> Iterator[Any]:
    for name in names:
        made = target(name)
        yield pytest.param(made.corpus, made.mend or bytes, made.run, made.refuses, id=name)


DOCUMENTS = (
    *of_targets("amendment", "paper", "roster", "cache", "router-answer", "state-file", "journal", "tensors"),
    pytest.param([format_index(INDEX)], bytes, index, (DataError,), id="index"),
    pytest.param([format_layout(TENSORS)], bytes, lambda raw: parse_layout(raw, 900), (ManifestError,), id="layout"),
)
NUMBER = re.compile(rb"(?<=[:\[, ])-?\d+(?:\.\d+)?(?=[,}\]\s])")


def rewritten(raw: bytes) -> Iterator[bytes]:
    """Yield the document with each of its numbers at each extreme."""
    for found in NUMBER.finditer(raw):
        for literal in (*LITERALS, "NaN", "true", '"1"', "null", "[]"):
            yield raw[: found.start()] + literal.encode() + raw[found.end() :]


@pytest.mark.parametrize(("corpus", "mend", "read", "refuses"), DOCUMENTS)
def test_a_number_of_a_document_is_refused_or_harmless(
    corpus: Sequence[bytes],
    mend: Callable[[bytes], bytes],
    read: Callable[[bytes], object],
    refuses: tuple[type[Exception], ...],
) -> None:
    played = 0
    for raw in corpus:
        for changed in map(mend, rewritten(raw)):
            played += 1
            try:
                read(changed)
            except refuses:
                continue
            except Exception as error:
                raise AssertionError(f"{changed[:300]!r}: {error!r}") from error
    assert played
