"""Invalid requests for artifacts by raw callers, and donors that lie about artifacts, on real connections."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from blake3 import blake3

from peer.clock.run_clock import RunClock
from peer.errors import ArtifactMissing, BadPayload, PartnerRefused
from peer.identity import Identity
from peer.membership.reputation import Reputation
from peer.node.handler import RequestHandler
from peer.protocol.messages import PIECE_BYTES, WIRE_VERSION, PeerId, PeerRecord, RunId, Status, artifact_name
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher
from peer.state.artifacts.server import ArtifactServer
from peer.transport.config import TransportConfig
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.server.call_places import CallPlaces
from peer.transport.server.service import ExchangeService
from peer.transport.tls import leaf_for
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter
from peer.transport.wire.refusals import served
from peer.v1.exchange_pb2 import HelloReply
from tests.support.artifacts import content, ref_of
from tests.support.hostile_client import HostileCaller, Refused, ended

RUN = RunId(b"R" * 32)
DATA = content(0, 2_000_000)
DIGEST = blake3(DATA).digest()


class CountingHandler(RequestHandler):
    """Counts reads of pieces from disk."""

    def __init__(self, artifacts: ArtifactServer) -> None:
        super().__init__(artifacts=artifacts)
        self.read = 0

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        self.read += 1
        return super().on_piece(snapshot, piece)


class Victim:
    """A real server with one artifact, about which it may lie."""

    def __init__(self, folder: Path, shelf: ArtifactServer | None = None) -> None:
        self.identity = Identity.generate()
        self.me = PeerId(self.identity.peer_id)
        self.blame: list[Any] = []
        if shelf is None:
            (folder / "file").write_bytes(DATA)
            shelf = ArtifactServer(ArtifactCache(folder / "cache", 10**9), {DIGEST.hex(): folder / "file"})
            shelf.on_artifacts([DIGEST])
        self.handler = CountingHandler(shelf)
        policy = TransportPolicy(reputation=Reputation(RunClock().now, self.blame.append))
        self.transport = GrpcTransport(self.identity, RUN, self.handler, RunClock().now, policy)
        self.endpoint = ""

    async def __aenter__(self) -> Victim:
        self.endpoint = f"127.0.0.1:{await self.transport.start('127.0.0.1', 0)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()

    def caller(self) -> HostileCaller:
        return HostileCaller(self.endpoint, self.me, RUN)

    def record(self) -> PeerRecord:
        now = RunClock().now()
        return PeerRecord(self.me, RUN, (self.endpoint,), True, 1, 1, 0, 0.0, Status.SERVING, now, now + 60)

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {self.me: self.record()}


def attack(test: Callable[[Victim, HostileCaller, bytes], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), Victim(folder) as victim, victim.caller() as caller:
            await test(victim, caller, await caller.hello())

    asyncio.run(main())


def asking(digests: Sequence[bytes]) -> bytes:
    return pb().ArtifactsRequest(digests=digests).SerializeToString()


def wanting(piece: int, name: str = artifact_name(DIGEST), offset: int = 0) -> bytes:
    return pb().PieceRequest(snapshot=name, piece=piece, offset=offset).SerializeToString()


def pb() -> Any:
    from peer.v1 import exchange_pb2

    return exchange_pb2


async def fetched(caller: HostileCaller, token: bytes, request: bytes) -> Refused:
    call = caller.open("FetchPiece", token)
    await call.write(request)
    await call.done_writing()
    return await ended(call)


@pytest.mark.parametrize(
    "request_",
    [
        asking([DIGEST] * 257),
        asking([DIGEST[:-1]]),
        asking([DIGEST + b"x"]),
        asking([DIGEST, b""]),
        asking([b"x" * 10_000]),
        b"\xff" * 50,
    ],
    ids=["257", "short", "long", "empty", "huge", "garbage"],
)
def test_questions_beyond_the_bounds_are_refused_and_counted(tmp_path: Path, request_: bytes) -> None:
    async def test(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        with pytest.raises(Refused) as refused:
            await caller.unary("Artifacts", token, request_)
        assert refused.value.code == "request"
        assert victim.blame, "it costs the caller its standing"
        with pytest.raises(Refused) as refused:
            await caller.unary("Artifacts", b"x" * 32, asking([DIGEST]))
        assert refused.value.code == "no_token"

    attack(test, tmp_path)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (wanting(2**31), "gone"),
        (wanting(2**32 - 1), "gone"),
        (wanting(0, "artifact:../../etc/passwd"), "gone"),
        (wanting(0, "artifact:" + "/" * 64), "gone"),
        (wanting(0, artifact_name(b"\0" * 32)), "gone"),
        (wanting(0, "artifact:"), "gone"),
        (wanting(0, "artifact:" + "0" * 4000), "gone"),
        (wanting(0, offset=len(DATA) + 1), "request"),
        (wanting(0, offset=2**63), "request"),
        (b"\xff" * 50, "request"),
    ],
)
def test_a_piece_that_is_none_is_refused(tmp_path: Path, request_: bytes, code: str) -> None:
    async def test(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        assert (await fetched(caller, token, request_)).code == code

    attack(test, tmp_path)


def test_a_caller_without_a_place_costs_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(victim: Victim, caller: HostileCaller, token: bytes) -> None:
        for _ in range(5):
            assert (await fetched(caller, token, wanting(0))).code == "busy"
        assert victim.handler.read == 0

    monkeypatch.setattr(CallPlaces, "busy_reason", lambda places, block, proven: "all are taken")
    attack(test, tmp_path)


# -- donors that lie -------------------------------------------------------------------------------------------------


class LyingShelf(ArtifactServer):
    """Claims to hold everything, and sends what the test sets."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        return [True] * len(digests)

    def on_piece(self, name: str, piece: int) -> memoryview | None:
        return memoryview(self._piece(piece))


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (lambda number: bytes(len(DATA)), "wrong bytes"),
        (lambda number: DATA[:-1], "wrong bytes"),
        (lambda number: DATA + b"x", "wrong bytes"),
        (lambda number: b"", "wrong bytes"),
    ],
    ids=["other", "short", "long", "empty"],
)
def test_wrong_bytes_are_never_used_and_their_donor_is_left_out(
    tmp_path: Path, piece: Callable[[int], bytes], why: str
) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), Victim(tmp_path, LyingShelf(piece)) as liar, Victim(tmp_path) as joiner:
            cache = ArtifactCache(tmp_path / "joiner", 10**8)
            fetcher = ArtifactFetcher(joiner.transport, liar.peers, cache, offload=asyncio.to_thread)
            with pytest.raises(ArtifactMissing, match=why):
                await fetcher.fetch(ref_of(DATA), 3.0)
            assert set(fetcher.liars) == {liar.me}
            assert not cache.has(DIGEST.hex())

    asyncio.run(main())


def test_a_huge_claimed_size_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), Victim(tmp_path) as donor, Victim(tmp_path) as joiner:
            cache = ArtifactCache(tmp_path / "joiner", 10**8)
            fetcher = ArtifactFetcher(joiner.transport, donor.peers, cache, offload=asyncio.to_thread)
            huge = ArtifactRef(digest=DIGEST.hex(), size=10**8 - 1000)
            with pytest.raises(ArtifactMissing, match="wrong bytes"):
                await fetcher.fetch(huge, 3.0)
            assert joiner.transport.bytes_received == 0, "another length than the asked one ends the call"
            assert cache.nbytes <= 10**8

    asyncio.run(main())


class OtherServer:
    """A separate server that answers every call as the test sets."""

    def __init__(self, reply: bytes | None) -> None:
        self.identity, self._reply = Identity.generate(), reply
        self.me = PeerId(self.identity.peer_id)

    def handlers(self, hello: Any) -> grpc.GenericRpcHandler:
        async def artifacts(request: bytes, context: Any) -> bytes:
            assert self._reply is not None
            return self._reply

        methods = {"Hello": hello}
        if self._reply is not None:
            methods["Artifacts"] = grpc.unary_unary_rpc_method_handler(artifacts)
        return grpc.method_handlers_generic_handler("peer.v1.Exchange", methods)


async def answered(reply: bytes | None, tmp_path: Path, asked: int) -> list[bool]:
    """Request artifacts from a peer with a valid Hello and its own answer."""
    own = OtherServer(reply)
    facts = TransportConfig(identity=own.identity, run_id=RUN, now=RunClock().now, wire_min=1, wire_max=WIRE_VERSION)
    honest = ExchangeService(facts, RequestHandler(), Caps(Pacer(None), Pacer(None), Meter()))
    server = grpc.aio.server()
    hello = served(honest.handshake.serve, HelloReply.SerializeToString)
    server.add_generic_rpc_handlers((own.handlers(hello),))
    leaf = leaf_for(own.identity, datetime.datetime.now(datetime.UTC))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([leaf]))
    await server.start()
    now = RunClock().now()
    record = PeerRecord(own.me, RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)
    try:
        async with asyncio.timeout(90), Victim(tmp_path) as joiner:
            return await joiner.transport.query_artifacts(record, [DIGEST] * asked, 5.0)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("answers", [0, 1, 3, 1_000_000])
def test_an_answer_of_another_length_is_no_answer(tmp_path: Path, answers: int) -> None:
    reply = pb().ArtifactsReply(held=[True] * answers).SerializeToString()
    with pytest.raises(BadPayload) as wrong:
        asyncio.run(answered(reply, tmp_path, 2))
    assert wrong.value.code == "artifacts"


def test_a_peer_of_an_older_version_holds_nothing(tmp_path: Path) -> None:
    assert asyncio.run(answered(None, tmp_path, 2)) == [False, False]


def test_a_piece_never_exceeds_its_bound(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), Victim(tmp_path) as donor, Victim(tmp_path) as joiner:
            with pytest.raises(AssertionError):
                await joiner.transport.fetch_artifact(donor.record(), DIGEST, 0, PIECE_BYTES + 1, 5.0)
            with pytest.raises(PartnerRefused):
                await joiner.transport.fetch_artifact(donor.record(), DIGEST, 7, 1, 5.0)

    asyncio.run(main())
