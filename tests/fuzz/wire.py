"""Fuzz targets: messages of a partner over gRPC."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import google_crc32c
import torch
from blake3 import blake3
from google.protobuf.message import DecodeError

from peer.codec.registry import CODECS
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.identity import Identity, peer_id_of
from peer.outer.arithmetic import all_finite
from peer.protocol.endpoints import host_of, host_of_caller, port_of
from peer.protocol.messages import MAX_ARTIFACTS, WIRE_VERSION, PeerId, PeerRecord, Piece, RoundKey, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.wire.frames import HEADER, MAX_CHUNK, Kind, PayloadReader, PayloadWriter, largest_for, pack, unpack
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.signed_record import InvalidRecord, open_record, seal
from peer.state.snapshot import StateSnapshot, check_index, check_piece
from peer.transport.calls.artifacts import digests_of, held_of
from peer.transport.calls.hello import offset_of
from peer.transport.calls.reserve import _reply_of, _statement_of
from peer.transport.calls.state import index_of
from peer.transport.config import RunTerms, TransportConfig
from peer.transport.relay.caller import seen_endpoint
from peer.transport.relay.wire import MARK, MAX_ADDRESS, SLIP_BYTES, decode_preamble, preamble
from peer.transport.server.service import ExchangeService
from peer.transport.wire.pacing import SMALLEST_CHUNK, Pacer, chunk_size
from peer.transport.wire.payload_stream import Caps, Meter, SwapTerms, read_open
from peer.transport.wire.refusals import _refusal
from peer.transport.wire.resumption import TransferProgress
from peer.transport.wire.validation import open_of, piece_request_of
from peer.v1 import exchange_pb2 as pb
from tests.fuzz.engine import Target
from tests.fuzz.parts import drive, join, split
from tests.fuzz.proto import change_field

RUN = RunId(b"r" * 32)
NOW = 1_750_000_000.0
OWNER = Identity.from_bytes(
    bytes.fromhex("08011240" + "11" * 32 + "d04ab232742bb4ab3a1368bd4615e4e6d0224ab71a016baf8520a332c9778737")
)
RECORD = PeerRecord(
    PeerId(OWNER.peer_id), RUN, ("192.0.2.1:4000",), True, 1, 1, 3, 10.0, Status.TRAINING, NOW, NOW + 60.0
)
LAYOUT = Layout.whole([TensorSpec("a", (3, 4)), TensorSpec("b", (5,))])
DIGEST = LAYOUT.digest()
NBYTES = 300


class Refused(Exception):
    """A typed refusal that the code under test returns."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def mend_frame(raw: bytes) -> bytes:
    """Correct the length and the checksum of a frame."""
    if len(raw) < HEADER.size:
        return raw
    body = raw[HEADER.size :]
    return raw[:16] + struct.pack("<II", len(body) & 0xFFFFFFFF, google_crc32c.value(body)) + body


def frame() -> Target:
    def run(raw: bytes) -> None:
        got = unpack(raw)
        assert len(got.body) <= MAX_CHUNK
        assert pack(got.kind, got.offset, got.body) == raw

    corpus = (pack(Kind.OPEN, 0, b"open"), pack(Kind.CHUNK, 2**40, b"x" * 100), pack(Kind.END, 7, b"d" * 32))
    return Target(name="frame", run=run, corpus=corpus, refuses=(BadPayload,), mend=mend_frame, limit=8192)


def _frames(data: bytes, *sizes: int) -> list[bytes]:
    writer, at, frames = PayloadWriter(), 0, []
    for size in sizes:
        frames.append(writer.chunk(data[at : at + size]))
        at += size
    return [*frames, writer.end()]


def payload() -> Target:
    """Receive a stream of frames into a sink."""

    def run(raw: bytes) -> None:
        reader, sink = PayloadReader(NBYTES), BufferSink(NBYTES)
        for part in split(raw):
            got = reader.take(part)
            if got.kind is Kind.CHUNK:
                sink.write(got.offset, got.body)
        if not reader.complete:
            raise PartnerLost("the stream ended in the middle")
        assert len(sink.data) == NBYTES
        assert blake3(sink.data).digest() == got.body

    def mend(raw: bytes) -> bytes:
        return join(*(mend_frame(part) for part in split(raw)))

    data = bytes(range(250)) + b"e" * 50
    corpus = tuple(join(*_frames(data, *sizes)) for sizes in ((300,), (100, 200), (1, 1, 298), (50,) * 6))
    return Target(name="payload", run=run, corpus=corpus, refuses=(BadPayload, PartnerLost), mend=mend, limit=8192)


def _in_a_frame(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    body = data[HEADER.size :]
    change_field(rng, body, corpus, tokens)
    data[:] = mend_frame(bytes(data[: HEADER.size] + body))


def swap_open() -> Target:
    """Decode the first frame of a stream, and compare its terms with ours."""
    caps = Caps(Pacer(None), Pacer(None), Meter())
    terms = SwapTerms(RoundKey(7, 0), "bf16", BytesSource(b"x" * NBYTES), BufferSink(NBYTES))

    def run(raw: bytes) -> None:
        async def read() -> bytes | None:
            return raw

        theirs = drive(read_open(read))
        terms.check(theirs)
        assert SMALLEST_CHUNK <= chunk_size(theirs.max_rate or None, largest_for(theirs.max_chunk)) <= MAX_CHUNK

    slow = pb.SwapOpen(round=7, fragment=0, codec="bf16", nbytes=NBYTES, max_rate=125_000.0)
    corpus = (terms.opening(caps), pack(Kind.OPEN, 0, slow.SerializeToString()))
    return Target(name="swap-open", run=run, corpus=corpus, refuses=(BadPayload,), mend=mend_frame, special=_in_a_frame)


def swap_again() -> Target:
    """Process openings of a partner that reconnects repeatedly, and its farewell, with data in between."""
    caps, number = Caps(Pacer(None), Pacer(None), Meter()), 77
    data = b"x" * NBYTES

    def run(raw: bytes) -> None:
        progress, terms = _with(NBYTES), SwapTerms(RoundKey(7, 0), "bf16", BytesSource(data), BufferSink(NBYTES))
        whole, had = PayloadWriter(), 0
        whole.skip(data)
        progress.reader.take(whole.end())
        for part in split(raw):
            if progress.is_farewell(part):
                assert progress.writer.offset == NBYTES
                return
            theirs = open_of(part)
            terms.check(theirs)
            progress.begin_stream(theirs.swap, theirs.have, NBYTES)
            had, before = theirs.have, had
            assert before <= had <= progress.writer.offset <= NBYTES
            progress.writer.go_back(had)
            while progress.writer.offset < min(had + 90, NBYTES):
                at = progress.writer.offset
                progress.writer.skip(data[at : at + 50])
            if progress.writer.offset == NBYTES:
                assert unpack(progress.writer.end()).body == blake3(data).digest()

    def _with(have: int) -> TransferProgress:
        progress = TransferProgress(NBYTES, number)
        for at in range(0, have, 60):
            progress.reader.take(pack(Kind.CHUNK, at, data[at : at + 60]))
        return progress

    def opening(have: int) -> bytes:
        return SwapTerms(RoundKey(7, 0), "bf16", BytesSource(data), BufferSink(NBYTES)).opening(caps, _with(have))

    def mend(raw: bytes) -> bytes:
        return join(*(mend_frame(part) for part in split(raw)))

    def _in_one(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
        parts = [bytearray(part) for part in split(bytes(data))]
        if parts:
            _in_a_frame(rng, parts[int(rng.random() * len(parts))], corpus, tokens)
        data[:] = join(*(bytes(part) for part in parts))

    corpus = (
        join(opening(0), opening(60), opening(120)),
        join(opening(0), *(opening(60 * n) for n in range(6)), _with(NBYTES).farewell(sent_all=True)),
        join(opening(0), opening(0), opening(60)),
    )
    refuses = (BadPayload, PartnerLost)
    return Target(name="swap-again", run=run, corpus=corpus, refuses=refuses, mend=mend, special=_in_one, limit=8192)


def piece_request() -> Target:
    def run(raw: bytes) -> None:
        request = piece_request_of(raw)
        assert SMALLEST_CHUNK <= chunk_size(request.max_rate or None, largest_for(request.max_chunk)) <= MAX_CHUNK
        assert 0 <= request.piece < 2**32

    requests = [pb.PieceRequest(snapshot="a1b2", piece=n, max_rate=n * 1e4, offset=n * 1000) for n in (0, 3)]
    corpus = tuple(request.SerializeToString() for request in requests)
    return Target(name="piece-request", run=run, corpus=corpus, refuses=(BadPayload,), special=change_field, limit=8192)


def artifacts() -> Target:
    """Decode a request for artifacts, and the reply for two of them."""

    def run(raw: bytes) -> None:
        try:
            digests = digests_of(pb.ArtifactsRequest.FromString(raw))
            assert len(digests) <= MAX_ARTIFACTS
            assert all(len(digest) == len(DIGEST) for digest in digests)
        except (DecodeError, BadPayload):
            assert len(held_of(pb.ArtifactsReply.FromString(raw), 2)) == 2

    question, answer = pb.ArtifactsRequest(digests=[DIGEST] * 3), pb.ArtifactsReply(held=[True, False])
    corpus = (question.SerializeToString(), answer.SerializeToString())
    return Target(name="artifacts", run=run, corpus=corpus, refuses=(DecodeError, BadPayload), special=change_field)


def codec() -> Target:
    """Decode a payload of a codec, and check that the values are finite."""
    names = sorted(CODECS)

    def run(raw: bytes) -> None:
        if len(raw) < 5:
            raise Refused("short")
        elements = int.from_bytes(raw[1:5], "little")
        values = CODECS[names[raw[0] % len(names)]].decode(raw[5:], elements)
        assert values.shape == (elements,)
        assert values.dtype == torch.float32
        assert all_finite(values) == bool(torch.isfinite(values).all())

    corpus = tuple(
        bytes([number]) + elements.to_bytes(4, "little") + CODECS[name].encode(torch.linspace(-3, 3, elements))
        for number, name in enumerate(names)
        for elements in (0, 1, 33)
    )
    return Target(name="codec", run=run, corpus=corpus, refuses=(BadPayload, Refused), limit=1024)


class _Nobody:
    """A handler with nothing to offer."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def hello() -> Target:
    """Serve both messages of a caller's Hello."""
    terms = RunTerms(layout_digest=DIGEST)
    facts = TransportConfig(
        identity=OWNER, run_id=RUN, now=lambda: NOW, wire_min=WIRE_VERSION, wire_max=WIRE_VERSION, terms=terms
    )
    handshake = ExchangeService(facts, _Nobody(), Caps(Pacer(None), Pacer(None), Meter())).handshake

    def run(raw: bytes) -> None:
        message = pb.HelloRequest.FromString(raw)
        if message.WhichOneof("step") == "proof":
            return
        opened = message.open
        if (refusal := handshake._refusal_before_proof(opened) or handshake._refusal_after_proof(opened)) is not None:
            raise Refused(refusal[0])
        assert PeerId(peer_id_of(opened.public_key))
        if opened.record:
            open_record(opened.record, RUN, NOW)

    opening = pb.HelloOpen(
        run_id=RUN,
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        layout_digest=DIGEST,
        public_key=OWNER.public_key,
        clock=NOW + 1,
    )
    shown = pb.HelloOpen.FromString(opening.SerializeToString())
    shown.record = seal(RECORD, OWNER)
    corpus = (
        pb.HelloRequest(open=opening).SerializeToString(),
        pb.HelloRequest(open=shown).SerializeToString(),
        pb.HelloRequest(proof=pb.HelloProof(signature=b"s" * 64)).SerializeToString(),
    )
    return Target(
        name="hello", run=run, corpus=corpus, refuses=(DecodeError, InvalidRecord, Refused), special=change_field
    )


def hello_reply() -> Target:
    """Process a challenge, whose clock may correct ours."""

    def run(raw: bytes) -> None:
        reply = pb.HelloReply.FromString(raw)
        if reply.WhichOneof("step") == "challenge":
            assert abs(offset_of(reply.challenge, NOW, NOW + 0.1, 60.0)) <= 60.0

    challenge = pb.HelloChallenge(nonce=b"n" * 32, clock=NOW, seen_as="ipv4:192.0.2.1:4711")
    refusal = pb.Refusal(code="clock", reason="set it")
    corpus = (
        pb.HelloReply(challenge=challenge).SerializeToString(),
        pb.HelloReply(granted=pb.HelloGranted(token=b"t" * 32, expires_in_s=600.0)).SerializeToString(),
        pb.HelloReply(refusal=refusal).SerializeToString(),
    )
    refuses = (DecodeError, BadPayload)
    return Target(name="hello-reply", run=run, corpus=corpus, refuses=refuses, special=change_field)


def refusal() -> Target:
    def run(raw: bytes) -> None:
        found = _refusal(raw, "somebody")
        assert isinstance(found, PartnerRefused | PartnerLost)
        assert len(str(found)) < 1000

    corpus = tuple(
        pb.Refusal(code=code, reason="because").SerializeToString() for code in ("taken", "bad_payload:digest", "")
    )
    return Target(name="refusal", run=run, corpus=corpus, special=change_field)


def state_index() -> Target:
    """Decode a donor's description of its state, and compare it with our layout."""
    index = StateSnapshot(torch.zeros(LAYOUT.elements), LAYOUT, 5).index

    def run(raw: bytes) -> None:
        check_index(index_of(pb.StateReply.FromString(raw)), LAYOUT)

    pieces = [pb.StatePiece(first=p.first, count=p.count, nbytes=p.nbytes, digest=p.digest) for p in index.pieces]
    reply = pb.StateReply(snapshot="a1b2", round=5, layout_digest=DIGEST, pieces=pieces)
    return Target(
        name="state-index",
        run=run,
        corpus=(reply.SerializeToString(),),
        refuses=(DecodeError, BadPayload),
        special=change_field,
        limit=16384,
    )


def piece() -> Target:
    """Check a piece against its digest."""

    def run(raw: bytes) -> None:
        check_piece(raw[32:], Piece(0, 1, 64, raw[:32]), 0)
        assert torch.isfinite(torch.frombuffer(bytearray(raw[32:]), dtype=torch.float32)).all()

    def mend(raw: bytes) -> bytes:
        body = raw[32:96].ljust(64, b"\0")
        return blake3(body).digest() + body

    corpus = (mend(b"\0" * 32 + torch.linspace(-1, 1, 16).numpy().tobytes()),)
    return Target(name="piece", run=run, corpus=corpus, refuses=(BadPayload,), mend=mend, limit=256)


def seen_as() -> Target:
    """Parse a caller's address in gRPC's notation."""

    def run(raw: bytes) -> None:
        host = host_of_caller(raw.decode(errors="surrogateescape"))
        if not host:
            raise Refused("unknown")
        assert ipaddress.ip_address(host)

    texts = (
        "ipv4:192.0.2.7:55312",
        "ipv6:%5B2001:db8::7%5D:55312",
        "ipv6:[::ffff:192.0.2.1]:1",
        "ipv6:%5Bfe80::1%25eth0%5D:1",
    )
    tokens = (b"%25", b"%", b"%5B", b"\n", b"\xd9\xa3", b"::", b"%FF")
    corpus = tuple(text.encode() for text in texts)
    return Target(name="seen-as", run=run, corpus=corpus, refuses=(Refused,), tokens=tokens, limit=400)


def reserve_reply() -> Target:
    """Decode a relay's message to a closed peer: cap, slip, and statement of our address."""

    def run(raw: bytes) -> None:
        reply = _reply_of(raw)
        word = _statement_of(reply)
        assert len(reply.slip) in (0, SLIP_BYTES)
        assert 0 < reply.rate < 1e12
        assert word is None or len(word.block) < 1000

    word = pb.RelayWord(block="192.0.2.0/24", until=int(NOW) + 3600, signature=b"s" * 64)
    replies = (
        pb.ReserveReply(rate=5e4),
        pb.ReserveReply(rate=5e4, slip=b"s" * SLIP_BYTES),
        pb.ReserveReply(rate=5e4, word=word),
    )
    corpus = tuple(reply.SerializeToString() for reply in replies)
    return Target(name="reserve-reply", run=run, corpus=corpus, refuses=(BadPayload,), special=change_field)


def relay_preamble() -> Target:
    """Decode the first bytes of a connection to the front, of a circuit or of gRPC."""

    def run(raw: bytes) -> None:
        if (slip := decode_preamble(raw)) is None:
            raise Refused("no preamble")
        assert preamble(slip) == raw

    corpus = (preamble(bytes(SLIP_BYTES)), preamble(bytes(range(SLIP_BYTES))))
    return Target(name="relay-preamble", run=run, corpus=corpus, refuses=(Refused,), tokens=(MARK,), limit=128)


def relay_told() -> Target:
    """Decode the other end's address from a relay. Only an address with a port is punched to."""

    def run(raw: bytes) -> None:
        endpoint = seen_endpoint(raw[:MAX_ADDRESS].decode("ascii", "replace"))
        if not endpoint:
            raise Refused("no address")
        assert ipaddress.ip_address(host_of(endpoint))
        assert 0 < port_of(endpoint) < 65536

    corpus = (b"ipv4:192.0.2.7:55312", b"ipv6:%5B2001:db8::7%5D:55312", b"ipv6:[::ffff:192.0.2.1]:1")
    tokens = (b"%25", b"%5B", b"::", b":0", b":65536", b"ipv6:", b"relay:")
    return Target(name="relay-told", run=run, corpus=corpus, refuses=(Refused,), tokens=tokens, limit=128)


TARGETS = (
    frame, payload, swap_open, swap_again, piece_request, artifacts, codec, hello, hello_reply, refusal, state_index,
    piece, seen_as, reserve_reply, relay_preamble, relay_told,
)  # fmt: skip
