"""Two real transports, one of which has used up its upload quota."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from blake3 import blake3

from peer.clock.run_clock import RunClock
from peer.errors import PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import (
    Answer,
    PeerId,
    PeerRecord,
    Piece,
    RoundKey,
    RunId,
    StateIndex,
    Status,
    SwapReport,
    Verdict,
)
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.wire.payload_stream import UploadBudget

RUN = RunId(b"B" * 32)
TIMEOUT = 10.0
STATE = b"s" * 1000
INDEX = StateIndex("snapshot", 3, b"L" * 32, (Piece(0, 1, len(STATE), blake3(STATE).digest()),))
USED = "today's upload of 5 GB is used"


class Willing(RequestHandler):
    """A handler that accepts every swap and has a state."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex:
        return INDEX

    def on_piece(self, snapshot: str, piece: int) -> memoryview:
        return memoryview(STATE)


class Used(UploadBudget):
    """An exhausted quota. `told`: whether joiners are refused before they request a piece."""

    def __init__(self, *, told: bool = True, on: bool = True) -> None:
        self._told = told
        self.on = on

    def refusal_reason(self, *, stranger: bool = False) -> str:
        return USED if self.on and self._told else ""

    @contextlib.contextmanager
    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> Iterator[Callable[[int], None]]:
        if self.on:
            raise PartnerRefused("budget", USED)
        yield lambda nbytes: None


@contextlib.asynccontextmanager
async def two(budget: UploadBudget | None = None) -> AsyncIterator[list[tuple[GrpcTransport, PeerRecord]]]:
    now, ends = RunClock().now, list[tuple[GrpcTransport, PeerRecord]]()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            identity = Identity.generate()
            policy = TransportPolicy(quota=budget) if budget is not None and not ends else TransportPolicy()
            end = GrpcTransport(identity, RUN, Willing(), now, policy)
            end.begin_run(RunTerms(b"L" * 32, 10**6))
            stack.push_async_callback(end.close)
            where = (f"127.0.0.1:{await end.start('127.0.0.1', 0)}",)
            me = PeerId(identity.peer_id)
            ends.append((end, PeerRecord(me, RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, now(), now() + 60)))
        async with asyncio.timeout(90):
            yield ends


def test_no_state_is_given_and_the_joiner_hears_why() -> None:
    async def main() -> None:
        budget = Used(on=False)
        async with two(budget) as ((_, record), (joiner, _)):
            assert await joiner.fetch_piece(record, INDEX, 0, TIMEOUT) == STATE
            budget.on = True
            with pytest.raises(PartnerRefused, match="5 GB is used; ask another peer"):
                await joiner.describe_state(record, TIMEOUT)
            with pytest.raises(PartnerRefused, match="5 GB is used; ask another peer"):
                await joiner.fetch_piece(record, INDEX, 0, TIMEOUT)

    asyncio.run(main())


def test_a_budget_that_ends_between_question_and_piece_is_a_refusal_too() -> None:
    async def main() -> None:
        async with two(Used(told=False)) as ((donor, record), (joiner, _)):
            with pytest.raises(PartnerRefused, match="5 GB is used") as refused:
                await joiner.fetch_piece(record, INDEX, 0, TIMEOUT)
            assert refused.value.code == "budget"
            assert donor.bytes_sent == 0

    asyncio.run(main())


@pytest.mark.parametrize("dials", [0, 1])
def test_a_swap_that_does_not_fit_sends_nothing_and_hangs_nobody(dials: int) -> None:
    async def main() -> None:
        async with two(Used()) as ends:
            poor, rich = ends
            both = await asyncio.gather(
                *(_swap(end, other, dial=number == dials) for number, (end, other) in enumerate((ends, ends[::-1]))),
                return_exceptions=True,
            )
            assert poor[0].bytes_sent == 0
            assert rich[0].bytes_sent > 0
            assert isinstance(both[1], PartnerLost)
            assert isinstance(both[0], PartnerLost) or (isinstance(both[0], SwapReport) and not both[0].sent_all)

    async def _swap(
        own: tuple[GrpcTransport, PeerRecord], other: tuple[GrpcTransport, PeerRecord], *, dial: bool
    ) -> SwapReport:
        source, sink = BytesSource(bytes(1000)), BufferSink(1000)
        return await own[0].swap(other[1], RoundKey(1, 0), source, sink, TIMEOUT, dial)

    asyncio.run(main())
