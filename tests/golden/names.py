"""Names in data that can be determined from the program without starting a process."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import grpc
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import descriptor_pb2
from torch import Tensor

import peer
from peer.aio.threads import inline
from peer.cli.main import COMMANDS
from peer.cli.main import peer as command_line
from peer.clock.run_clock import RunClock
from peer.codec.joined import encode_joined
from peer.codec.lattice.codec import Modulo
from peer.codec.registry import EVERY
from peer.codes import REJECTED, Code
from peer.discovery.keys import bucket_key, slot
from peer.errors import PeerError
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.sparse_result import SparseResult
from peer.identity import Identity
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.methods.method import Method
from peer.methods.registry import PRESETS
from peer.observe.event_codec import encode
from peer.observe.events import KINDS, OUTCOMES, Event
from peer.observe.exposition import exposition
from peer.observe.metrics import CODES, EXCHANGE_BOUNDS, METRICS, Metric
from peer.observe.totals import Totals, fold
from peer.outer.state import OuterState
from peer.protocol.diagnosis.outliers import WHATS
from peer.protocol.group.quorum import Base, Quorum
from peer.protocol.group.quorum_codec import pack as pack_rosters
from peer.protocol.group.receipts import digest_of, part_statement, statement
from peer.protocol.group.roster import ROSTER_DOMAIN, JoinStatus, Roster
from peer.protocol.group.shards import ContributionHeader
from peer.protocol.messages import FRAGMENT_PREFIX, WIRE_VERSION, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.pair.receipt import SwapOpinion
from peer.protocol.pair.receipt_chain import Countersigned
from peer.protocol.policy.amendments import Change
from peer.protocol.wire.frames import HEADER, MAGIC, VERSION, Kind, PayloadWriter, pack
from peer.protocol.wire.payload import BytesSource
from peer.run.manifest import DOMAIN as MANIFEST_DOMAIN
from peer.run.manifest import Manifest
from peer.run.statements.files import lines_of
from peer.run.statements.kinds import AMENDMENT, PAPER
from peer.run.statements.log import StatementLog
from peer.run.ticket import Ticket
from peer.signed_record import DOMAIN as RECORD_DOMAIN
from peer.signed_record import seal, unseal
from peer.state.snapshot import StateSnapshot
from peer.state.transfer.fragment import name_of
from peer.state.transfer.pieces import PieceStore
from peer.trainer.arena import CounterFile
from peer.trainer.config import TrainerConfig
from peer.trainer.subprocess import REFUSALS
from peer.transport.calls.group import base_message
from peer.transport.calls.hello import HELLO_DOMAIN
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.signing import KeySigner
from peer.transport.wire.group_messages import contribute_open, contribute_reply
from peer.transport.wire.refusals import REFUSAL_KEY, TOKEN_KEY
from peer.v1 import exchange_pb2 as pb
from tests import prometheus_text
from tests.golden.shapes import described_fields, described_model, shape
from tests.support.signed_receipts import Signing, chained, countersigned, file_of
from tests.support.summaries import shown, signed_summary, view_at

RUN = RunId(bytes(range(32)))
PACKAGE = Path(peer.__file__).parent


def identity(seed: int) -> Identity:
    """Return a key that is equal in every run. It protects nothing."""
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


# -- journal -----------------------------------------------------------------------------------------------------------


def filled(kind: type[Event]) -> Event:
    """Return an example with a value in every field, none of them the default."""
    samples: dict[str, Any] = {"int": 7, "float": 0.25, "str": "text", "bool": True, "map": totals().to_json()}
    values = {}
    for at, field in enumerate(described_fields(kind)):
        described = field["type"]
        word = described if isinstance(described, str) else next(iter(described))
        values[field["name"]] = described[word][0] if word == "one of" else samples[word]
        if word in ("int", "float"):
            values[field["name"]] += at
    return kind(**values)


def totals() -> Totals:
    """Return totals with a value in every field."""
    return Totals(
        rounds={"due": 3, "exchanged": 2},
        applied=5,
        dropped=6,
        upto={0: 7},
        steps=8,
        bytes_sent=9,
        bytes_received=10,
        state_bytes=11,
        seconds_exchanging=12.5,
        partner_failures=13,
        trainer_deaths=14,
        starts=15,
        val_loss=((1, 5.5, 7.25),),
        joined_at=16.5,
        live=((17.5, 18.5),),
        live_since=19.5,
        last_at=20.5,
    )


def journal() -> Any:
    """Return all kinds with their fields, and the totals over one event of each."""
    summed = Totals()
    for at, kind in enumerate(KINDS.values()):
        if kind.kind != "totals":
            summed = fold(summed, filled(kind), 1000.0 + at)
    return {
        "kinds": {name: described_fields(kind) for name, kind in KINDS.items()},
        "totals": described_fields(Totals),
        "sums": summed.to_json(),
    }


def journal_lines() -> bytes:
    """Return one line of each kind."""
    return b"".join(encode(filled(kind), 1000.5 + at) for at, kind in enumerate(KINDS.values()))


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics() -> Any:
    """Return types and labels of all samples for each role when every value is known, without help texts."""
    facts: dict[str, Any] = {}
    for metric in METRICS:
        for label in metric.values or ("",):
            _put(facts, metric, metric.path.replace(f"{{{metric.label}}}", label), label)
            if metric.per:
                _put(facts, metric, metric.per, label)
    pages = {role: prometheus_text.parse(exposition(facts, role).decode()) for role in ("peer", "bootstrap")}
    return {
        role: {
            name: {"type": family.kind, "samples": [f"{one}{{{labels}}}" for one, labels in family.samples]}
            for name, family in page.items()
        }
        for role, page in pages.items()
    }


def _put(facts: dict[str, Any], metric: Metric, path: str, label: str) -> None:
    """Set the value that a metric reads."""
    *folders, name = path.split(".")
    for folder in folders:
        facts = facts.setdefault(folder, {})
    if metric.kind == "info":
        facts.setdefault(name, {}).update(dict.fromkeys(metric.values, "text"))
    elif metric.kind == "histogram":
        facts[name] = {"buckets": [1] * (len(EXCHANGE_BOUNDS) + 1), "sum": 1.0}
    else:
        facts.setdefault(name, label if metric.equals else 1)


# -- the wire ----------------------------------------------------------------------------------------------------------

_FIELD = descriptor_pb2.FieldDescriptorProto


def _field(field: Any, oneofs: list[str]) -> dict[str, Any]:
    kind = field.type_name or _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
    entry: dict[str, Any] = {"name": field.name, "number": field.number, "type": kind}
    if field.label == _FIELD.LABEL_REPEATED:
        entry["repeated"] = True
    return entry | ({"oneof": oneofs[field.oneof_index]} if field.HasField("oneof_index") else {})


def protobuf() -> Any:
    """Return messages and services as declared."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    assert not file.enum_type
    messages = {}
    for message in file.message_type:
        assert not message.nested_type
        oneofs = [oneof.name for oneof in message.oneof_decl]
        messages[message.name] = [_field(field, oneofs) for field in message.field]
    services = {
        service.name: [
            [m.name, m.input_type, "stream" * m.client_streaming, m.output_type, "stream" * m.server_streaming]
            for m in service.method
        ]
        for service in file.service
    }
    return {"package": file.package, "syntax": file.syntax, "messages": messages, "services": services}


def served() -> dict[str, Any]:
    """Return the paths of the methods that a server offers, and those with raw frames."""
    offered: dict[str, Any] = {}
    make = grpc.method_handlers_generic_handler

    def recorded(service: str, handlers: dict[str, Any]) -> Any:
        for name in sorted(handlers):
            method = handlers[name]
            offered[f"/{service}/{name}"] = [bool(method.request_streaming), bool(method.response_streaming)]
        return make(service, handlers)

    async def listen() -> None:
        transport = GrpcTransport(identity(1), RUN, mock.Mock(), RunClock().now)
        await transport.start("127.0.0.1", 0)
        await transport.close()

    with mock.patch.object(grpc, "method_handlers_generic_handler", recorded):
        asyncio.run(listen())
    return offered


def codes() -> dict[str, int]:
    """Return the known codes of refusals and failures that appear right before another argument or element, each with
    the number of places where that is a sentence. A lower number: a place was merged with another, or has another code
    now."""
    known, found = {*Code, *CONTROL_CODES}, Counter[str]()
    for word, beside in _words():
        if word in known:
            found[word] += _is_sentence(beside)
    return dict(sorted(found.items()))


CONTROL_CODES = {"bad_request", "unknown_command", "too_large", "busy"}


def _words() -> Iterator[tuple[str, ast.expr]]:
    """Yield members of `Code` and one-word string constants, each with the argument or element that follows it."""
    for tree in _trees(but="codes.py"):
        for node in ast.walk(tree):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Call):
                parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, ast.Dict):
                parts = node.values
            elif isinstance(node, ast.Tuple) and len(node.elts) < 6:
                parts = node.elts
            for one, beside in itertools.pairwise(parts):
                if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "Code":
                    yield Code[one.attr].value, beside
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
                    yield one.value, beside


def _is_sentence(part: ast.expr) -> bool:
    words = isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value
    return words or isinstance(part, ast.JoinedStr)


def _trees(but: str = "") -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != but:
            yield ast.parse(path.read_text())


def wire() -> Any:
    return {
        "protobuf": protobuf(),
        "served": served(),
        "metadata": {"token": TOKEN_KEY, "refusal": REFUSAL_KEY},
        "frame": {"header": HEADER.format, "bytes": HEADER.size, "magic": MAGIC.decode(), "version": VERSION},
        "frame kinds": {kind.name: kind.value for kind in Kind},
        "wire version": WIRE_VERSION,
        "prefixes": {"refused payload": REJECTED, "fragment served": FRAGMENT_PREFIX},
        "domains": {
            "hello": HELLO_DOMAIN.decode(),
            "record": RECORD_DOMAIN.decode(),
            "roster": ROSTER_DOMAIN.decode(),
            "amendment": AMENDMENT.domain.decode(),
            "paper": PAPER.domain.decode(),
            "manifest": MANIFEST_DOMAIN.decode(),
        },
        "words": {
            "status": [word.value for word in Status],
            "verdict": [word.value for word in Verdict],
            "told": [word.value for word in JoinStatus],
            "change": [word.value for word in Change],
            "outcome": list(OUTCOMES),
            "finding": list(WHATS),
        },
        "codes": codes(),
        "codes counted": sorted(CODES),
    }


def record() -> PeerRecord:
    return PeerRecord(
        peer_id=PeerId(identity(1).peer_id),
        run_id=RUN,
        endpoints=("203.0.113.7:4810", "[2001:db8::7]:4810"),
        reachable=True,
        wire_min=1,
        wire_max=2,
        round=12,
        tokens_per_s=34.5,
        status=Status.TRAINING,
        issued_at=1000.25,
        expires_at=1045.25,
    )


def _roster() -> Roster:
    members = tuple(sorted(PeerId(identity(seed).peer_id) for seed in (1, 2, 3)))
    return Roster(RUN, RoundKey(5, 1), members[0], Base(b"d" * 32, members[:2], 4), members, members[1:])


def _amended() -> StatementLog:
    operator = identity(1)
    log = StatementLog(RUN, operator.peer_id)
    log.amend(operator, 3, Change.LR_SCALE, "slower", value=0.5)
    log.amend(operator, 4, Change.WIRE, "", low=1, high=2)
    log.amend(operator, 4, Change.BAN, "", peer=identity(2).peer_id)
    log.amend(operator, 5, Change.REFOUND, "back", digest="ab" * 32)
    return log


def _rosters() -> bytes:
    quorum, members = Quorum(), _roster().members
    quorum.accepted(4, members)
    quorum.adopt(Base(b"d" * 32, members, 4))
    quorum.accepted(5, members[:2])
    return pack_rosters([quorum])


def _relayed() -> bytes:
    """Return the digest of a sparse result made of one part of 70,000 elements."""
    topk = EVERY["topk"]
    part = Contribution(300, BytesSource(topk.encode(_values(70_000))), b"s" * 64)
    return blake3(SparseResult(topk).make([(part, 0.5)], torch.empty(70_000))).digest()


def wire_bytes(scratch: Path) -> Any:
    """Return bytes that other peers verify or other versions read, by their meaning, in hex."""
    operator, roster = identity(1), _roster()
    assert unseal(seal(record(), operator)) == record()
    amended = _amended()
    opening = ContributionHeader(RoundKey(5, 1), roster.name(), 2, 300, 4000, 77, 88)
    given = digest_of(b"mean", [0, 2])
    counters = CounterFile(scratch, 2)
    counters.stepped(128, 5000)
    counters.rebase(1, 128)
    counters.waited(6000)
    swap = pb.SwapOpen(round=5, fragment=1, codec="bf16", nbytes=9, swap=3, have=2)
    written = {
        "roster": roster.to_bytes(),
        "rosters kept": _rosters(),
        "amendments": lines_of(amended.chain),
        "DHT key": bucket_key(RUN, "01"),
    }
    made: dict[str, bytes] = {
        "key file": operator.to_bytes(),
        "signed record": seal(record(), operator),
        "signature of a hello": operator.sign(HELLO_DOMAIN, b"message"),
        "signature of a manifest": operator.sign(MANIFEST_DOMAIN, b"message"),
        "OPEN frame": pack(Kind.OPEN, 0, swap.SerializeToString()),
        "CHUNK frame": pack(Kind.CHUNK, 2, b"payload"),
        "STRIPES frame": pack(Kind.STRIPES, 3, b""),
        "END frame": _end_frame(),
        "contribution": contribute_open(opening, 1e6),
        "owner's answer": contribute_reply("send", max_rate=1e6, transfer=77, have=5),
        "base": base_message(roster.base).SerializeToString(),
        "name of a roster": roster.name(),
        "signature of a roster": KeySigner(operator).sign(roster.to_bytes()),
        "voucher": statement(roster.name(), 2, given),
        "part": part_statement(roster.name(), 2, 300, given),
        "receipt": _receipt_of_a_swap().own_statement.to_bytes(),
        "chain of receipts": file_of(chained(Signing(operator), [_receipt_of_a_swap()])),
        "joined": encode_joined(_values(9)),
        "relayed": _relayed(),
        "head of the amendments": amended.head,
        "DHT slot": slot(bucket_key(RUN)),
        "counters": (scratch / "counters.bin").read_bytes(),
    }
    ticket = Ticket(RUN, (f"/ip4/203.0.113.7/tcp/4810/p2p/{operator.peer_id}",)).encode()
    texts = {"peer id": operator.peer_id, "ticket": ticket, "name of a fragment": name_of(3, b"d" * 32)}
    texts |= {name: raw.decode() for name, raw in written.items()}
    return texts | {name: raw.hex() for name, raw in made.items()} | _state(scratch) | {"codecs": _codecs()}


def _receipt_of_a_swap() -> Countersigned:
    ours, theirs = SwapOpinion(300, accepted=True, gain=4), SwapOpinion(200, accepted=False, gain=1)
    return countersigned(Signing(identity(1)), Signing(identity(2)), 5, ours, theirs)


def _values(elements: int) -> Tensor:
    """Return test values that are equal on every machine: each is one division, which is rounded equally everywhere."""
    return (torch.arange(elements) * 7919 % 1001 - 500).float() / 37.0


def _state(scratch: Path) -> dict[str, Any]:
    """Return the names of a state and of its pieces on a joiner's disk."""
    layout = Layout((TensorSpec("a.weight", (3, 4)), TensorSpec("b", (5,))), ((0, 1), (1, 2)))
    snapshot = StateSnapshot(_values(17), layout, 9, _values(17) * 2)
    pieces = PieceStore(layout, scratch / "transfer", momentum=True)
    pieces.begin_state(snapshot.index.snapshot)
    for number in range(len(snapshot.index.pieces)):
        data = snapshot.piece(number)
        assert data is not None
        pieces.store(number, snapshot.index, bytes(data))
    outer = OuterState(layout, _values(17), _values(17) * 2)
    return {
        "digest of a layout": layout.digest().hex(),
        "name of a group's state": snapshot.index.snapshot,
        "digest of a fragment's state": outer.digest(0).hex(),
        "pieces on disk": sorted(
            str(path.relative_to(scratch)) for path in (scratch / "transfer").rglob("*") if path.is_file()
        ),
    }


def _codecs() -> dict[str, list[Any]]:
    """Return length and BLAKE3 of each codec's encoding of the same values."""
    payloads = {name: codec.encode(_values(5000)) for name, codec in EVERY.items()}
    payloads |= {f"modulo{bits}": Modulo(bits).encode(_values(5000), 0.25) for bits in (6, 7)}
    return {name: [len(payload), blake3(payload).hexdigest()] for name, payload in payloads.items()}


def _end_frame() -> bytes:
    writer = PayloadWriter()
    writer.chunk(b"payload")
    return writer.end()


# -- what people and files name ----------------------------------------------------------------------------------------


def _all_below(kind: type[PeerError]) -> Iterator[type[PeerError]]:
    for below in kind.__subclasses__():
        yield below
        yield from _all_below(below)


def errors() -> Any:
    """Return the errors, which are sent by name from trainer to daemon and over the control socket."""
    ours = [kind for kind in (PeerError, *_all_below(PeerError)) if kind.__module__ == PeerError.__module__]
    return {
        "exit codes": {kind.__name__: [kind.exit_code, kind.retry] for kind in sorted(ours, key=lambda k: k.__name__)},
        "refusals of a trainer": sorted(REFUSALS),
    }


def manifest() -> Any:
    return {
        "manifest": described_model(Manifest),
        "method": described_fields(Method),
        "presets": list(PRESETS),
        "told to a trainer": described_model(TrainerConfig),
    }


def commands() -> Any:
    """Return every command with its arguments, options and environment variables."""
    with click.Context(command_line) as context:
        found = {name: command_line.get_command(context, name) for name in COMMANDS}
    below = {
        f"{name} {word}": _command(one)
        for name, command in found.items()
        if isinstance(command, click.Group) and command.params
        for word, one in command.commands.items()
    }
    return {name: _command(command) for name, command in found.items()} | below


def _command(command: Any) -> Any:
    if isinstance(command, click.Group) and not command.params:
        return {name: _command(below) for name, below in command.commands.items()}
    return [
        " ".join([*parameter.opts, *parameter.secondary_opts, f"[{parameter.envvar}]" if parameter.envvar else ""])
        for parameter in command.params
    ]


def run_view(scratch: Path) -> Any:
    """Return the shape of the file in which a node stores the summaries of its peers. Keys of maps are peer ids."""
    path, peer = scratch / "run_view.json", Signing()

    async def main() -> None:
        clock = VirtualClock()
        view = view_at(clock, path)
        told = signed_summary(peer, clock.now(), receipts=(shown(Signing(), peer, 1),))
        assert view.on_summary(peer.id, "home", told) == ""
        running = asyncio.create_task(view.run(inline, print))
        await clock.sleep(1.0)
        running.cancel()
        await asyncio.wait({running})

    run_virtual(main())
    return shape(json.loads(path.read_text()), ())


_FILE = re.compile(r"[\w-]+(\.[a-z]+)*\.(json|jsonl|toml|sig|bin|log|key|sock|safetensors)")
_BARE = {"run_start", "run_round", "transfer", "checkpoints", "runs", "lock"}


def files() -> list[str]:
    """Return the names of files on disk that occur in the program."""
    constants = (node.value for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return sorted({word for word in constants if isinstance(word, str) and (_FILE.fullmatch(word) or word in _BARE)})
