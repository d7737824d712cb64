from __future__ import annotations

import asyncio
import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import BadPayload
from peer.identity import Identity
from peer.protocol.messages import FRAGMENT_PREFIX, PeerId, Piece, RunId, StateIndex
from peer.transport.calls.hello import offset_of
from peer.transport.calls.state import index_of
from peer.transport.config import TransportConfig
from peer.transport.server.call_places import CallPlaces
from peer.transport.server.service import MAX_PIECES, PIECES_RESERVED, SLOWEST_JOINER, TAKE_S, ExchangeService
from peer.transport.wire.pacing import Pacer, chunk_size
from peer.transport.wire.payload_stream import Caps, Meter
from peer.transport.wire.refusals import TOKEN_KEY
from peer.transport.wire.validation import MAX_REQUEST, piece_request_of
from peer.v1 import exchange_pb2 as pb

NOW = 1_750_000_000.0
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
pieces = st.builds(Piece, first=u32, count=u32, nbytes=u64, digest=st.binary(max_size=40))
indices = st.builds(
    StateIndex,
    snapshot=st.text(st.characters(exclude_categories=["Cs"]), max_size=128),
    round=u64,
    layout_digest=st.binary(max_size=40),
    pieces=st.lists(pieces, max_size=5).map(tuple),
)


@given(indices)
def test_a_described_state_survives_the_wire(index: StateIndex) -> None:
    sent = [pb.StatePiece(first=p.first, count=p.count, nbytes=p.nbytes, digest=p.digest) for p in index.pieces]
    reply = pb.StateReply(
        snapshot=index.snapshot, round=index.round, layout_digest=index.layout_digest, pieces=sent
    ).SerializeToString()
    assert index_of(pb.StateReply.FromString(reply)) == index


def test_a_snapshot_of_too_long_a_name_is_refused() -> None:
    with pytest.raises(BadPayload):
        index_of(pb.StateReply(snapshot="x" * 129))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100), u32, st.floats(0, 1e14))
def test_a_piece_request_survives_the_wire(snapshot: str, piece: int, rate: float) -> None:
    request = pb.PieceRequest(snapshot=snapshot, piece=piece, max_rate=rate)
    assert piece_request_of(request.SerializeToString()) == request


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    raw = b"\x19" + struct.pack("<d", rate)
    with pytest.raises(BadPayload, match="rate"):
        piece_request_of(raw)


def test_a_long_request_is_refused_whole_and_not_cut() -> None:
    raw = pb.PieceRequest(snapshot="x" * 5000).SerializeToString()
    assert len(raw) > MAX_REQUEST
    with pytest.raises(BadPayload, match="bytes"):
        piece_request_of(raw)


@given(st.floats(-60, 60), st.floats(0, 5))
def test_a_clock_within_the_limit_gives_its_offset(offset: float, trip: float) -> None:
    challenge = pb.HelloChallenge(clock=NOW + trip / 2 + offset)
    assert offset_of(challenge, NOW, NOW + trip, 61.0) == pytest.approx(offset, abs=1e-5)


@pytest.mark.parametrize("clock", [math.nan, math.inf, -math.inf, 1e308, 0.0, NOW + 62])
def test_a_clock_that_cannot_be_never_corrects_ours(clock: float) -> None:
    challenge = pb.HelloChallenge.FromString(b"\x11" + struct.pack("<d", clock))
    with pytest.raises(BadPayload, match="clock"):
        offset_of(challenge, NOW, NOW + 1, 60.0)


def service(rate: float | None, handler: Any = None) -> ExchangeService:
    facts = TransportConfig(
        identity=Identity.generate(), run_id=RunId(b"r" * 32), now=lambda: NOW, wire_min=1, wire_max=1
    )
    return ExchangeService(facts, handler, Caps(Pacer(rate), Pacer(None), Meter()))


def test_a_piece_may_take_as_long_as_slow_lines_need_and_no_longer() -> None:
    nbytes = 2**20
    assert service(None)._patience_s(nbytes) == TAKE_S + nbytes / SLOWEST_JOINER
    own = service(1000.0)._patience_s(nbytes) - service(None)._patience_s(nbytes)
    assert own >= MAX_PIECES * nbytes / 1000.0, "our own cap, shared by all pieces, is not the joiner's fault"


class Deaf:
    """A caller that requests a piece and never reads any of it."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.refused = ""

    def invocation_metadata(self) -> list[tuple[str, bytes]]:
        return [(TOKEN_KEY, self.token)]

    def peer(self) -> str:
        return "ipv4:192.0.2.7:4711"

    async def read(self) -> bytes:
        return pb.PieceRequest(snapshot="a", piece=0).SerializeToString()

    async def write(self, frame: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    async def abort(self, status: object, code: str) -> None:
        self.refused = code
        raise ConnectionAbortedError(code)


def test_who_does_not_take_its_piece_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExchangeService, "_patience_s", lambda self, nbytes: 0.01)
    donor = service(None, SimpleNamespace(on_piece=lambda snapshot, piece: memoryview(b"x" * 100)))
    caller: Any = Deaf(donor.admission.tokens.issue(PeerId(Identity.generate().peer_id), NOW))

    async def ask() -> None:
        async with asyncio.timeout(180):
            await donor.fetch_piece(None, caller)

    with pytest.raises(ConnectionAbortedError):
        asyncio.run(ask())
    assert caller.refused == "timeout"
    assert len(donor._piece_places) == 0


def test_a_fragment_is_not_copied_before_there_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    donor = service(None, SimpleNamespace(making=asked.append, on_piece=lambda snapshot, piece: None))
    caller: Any = Deaf(donor.admission.tokens.issue(PeerId(Identity.generate().peer_id), NOW))
    wanted = pb.PieceRequest(snapshot=f"{FRAGMENT_PREFIX}0:ab", piece=0).SerializeToString()

    async def read() -> bytes:
        return wanted

    async def ask() -> None:
        async with asyncio.timeout(180):
            await donor.fetch_piece(None, caller)

    monkeypatch.setattr(caller, "read", read)
    for taken, refused in ((MAX_PIECES, "busy"), (0, "gone")):
        donor._piece_places = CallPlaces(MAX_PIECES, PIECES_RESERVED, "pieces")
        for _ in range(taken):
            donor._piece_places._places.enter(asyncio.Timeout(None), "192.0.2.0/24")
        with pytest.raises(ConnectionAbortedError):
            asyncio.run(ask())
        assert caller.refused == refused
        assert len(asked) == (refused == "gone")


def test_every_rate_let_through_makes_a_chunk() -> None:
    for rate in (5e-324, 1.0, 1e14):
        request = piece_request_of(pb.PieceRequest(max_rate=rate).SerializeToString())
        assert 1024 <= chunk_size(request.max_rate) <= 2**20
        pacer = Pacer(request.max_rate)
        asyncio.run(pacer.wait_turn(1))
