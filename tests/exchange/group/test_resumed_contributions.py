"""Groups over real links that are cut in the middle of a contribution or a result: transfers are resumed where they
broke."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.exchange.group import reducer as desk
from peer.exchange.group import shard_exchange as sharing
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.group.sparse_result import SparseResult
from peer.identity import Identity
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.observe.status.codec import to_json
from peer.protocol.group.shards import ALIGN
from peer.protocol.messages import PeerId, PeerRecord, Reach, RoundKey, RunId, Status
from peer.protocol.wire.frames import HEADER, USUAL_CHUNK
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.signing import KeySigner
from peer.transport.wire import resumption as resuming
from tests.support.cutting_relay import Wire, before

RUN, KEY, ELEMENTS = RunId(b"R" * 32), RoundKey(0, 0), 2_000_000
PART = 2 * ELEMENTS
"""Bytes of a contribution, or of a result, between two members."""
TWO_CHUNKS = 2 * USUAL_CHUNK


@dataclass
class Eyes:
    known: dict[PeerId, PeerRecord] = field(default_factory=dict)
    banned: Callable[[], Container[PeerId]] = frozenset
    detector: FailureDetector = field(default_factory=lambda: FailureDetector(lambda: 0.0))

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        return self.known

    def own_reach(self) -> Reach:
        return Reach.DIRECT

    def relay_rate(self) -> float:
        return 0.0


@dataclass
class Owner:
    group: Any = None

    def on_hello(self, record: PeerRecord) -> None: ...


@dataclass
class Member:
    record: PeerRecord
    transport: GrpcTransport
    eyes: Eyes
    reputation: Reputation
    group: GroupMember
    wire: Wire
    """The link over which the other members call this one."""

    @property
    def resent(self) -> int:
        """Return the bytes of chunks that this member sent more than once. It has a contribution and a result to send;
        each stream begins with a few smaller chunks, and each chunk has a header."""
        headers = 2 * (PART // USUAL_CHUNK + 8) * HEADER.size
        return self.transport.bytes_sent - 2 * PART - headers


@contextlib.asynccontextmanager
async def two(codec: str = "fp32", elements: int = ELEMENTS, count: int = 2) -> AsyncIterator[list[Member]]:
    """Run the test with two members, or `count`. Members with the codec topk have sparse results."""
    clock, members = RunClock(), list[Member]()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            identity, owner, wire = Identity.generate(), Owner(), Wire()
            transport = GrpcTransport(identity, RUN, owner, clock.now)  # type: ignore[arg-type]
            transport.begin_run(RunTerms(b"L" * 32, 2**26))
            stack.push_async_callback(transport.close)
            inner = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
            where = (await stack.enter_async_context(before(inner, wire)),)
            now, me = clock.now(), PeerId(identity.peer_id)
            record = PeerRecord(me, RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)
            eyes, reputation = Eyes(), Reputation(clock.now, lambda event: None)
            terms = GroupTerms(
                run_id=RUN,
                me=me,
                elements=(elements,),
                mean=MeanTerms(
                    codec=EVERY[codec], result_codec=SparseResult(EVERY[codec]) if codec == "topk" else EVERY["fp32"]
                ),
                max_group=8,
            )
            signer = KeySigner(identity)
            context = GroupContext(terms, signer, transport, clock, eyes, reputation, asyncio.to_thread)
            owner.group = GroupMember(context)
            members.append(Member(record, transport, eyes, reputation, owner.group, wire))
        for one, other in itertools.permutations(members, 2):
            one.eyes.known[other.record.peer_id] = other.record
        async with asyncio.timeout(20 * count):
            yield members


async def play(members: list[Member]) -> list[GroupMean]:
    """Play a round; all members must end with the mean of all contributions."""
    now, values = RunClock().now(), [torch.full((ELEMENTS,), 1.0 + 2 * number) for number in range(len(members))]
    got = await asyncio.gather(
        *(
            member.group.exchange(KEY, value, b"b" * 32, 100, now, now + 10, now + 35)
            for member, value in zip(members, values, strict=True)
        )
    )
    for member, one in zip(members, got, strict=True):
        assert one.spans == one.named == [(0, ELEMENTS)], one.reason
        assert bool((one.mean == 2.0).all())
        assert not to_json(member.reputation.report())["refusals"]
    return got


class Cuts:
    """Cuts both links each time when the given bytes of one kind have arrived and each member has received some, since
    a transfer that has not begun cannot be resumed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str, marks: list[int], away_s: float, how: str) -> None:
        kind = desk.ContributionUpload if what == "contribution" else sharing.ShardResultSink
        write = kind.write
        self.members = list[Member]()
        self._marks, self._away_s, self._how = marks, away_s, how
        self._came = 0
        begun = set[int]()
        """The members' transfers that have begun."""

        def counted(place: Any, offset: int, data: bytes) -> None:
            write(place, offset, data)
            self._came += len(data)
            begun.add(id(place._reducer) if what == "contribution" else id(place))
            if self._marks and self._came >= self._marks[0] and len(begun) >= 2:
                self._marks.pop(0)
                self._cut()

        monkeypatch.setattr(kind, "write", counted)

    @property
    def made(self) -> bool:
        return not self._marks

    def _cut(self) -> None:
        for member in self.members:
            getattr(member.wire, self._how)()
            asyncio.get_running_loop().call_later(self._away_s, member.wire.mend)


@pytest.mark.parametrize("what", ["contribution", "result"])
@pytest.mark.parametrize(
    ("marks", "away_s", "how"),
    [([PART], 0.0, "sever"), ([PART], 2.5, "sever"), ([PART // 2, PART, 3 * PART // 2], 0.1, "sever")],
    ids=["at once", "away for a while", "again and again"],
)
def test_it_goes_on_where_it_was(
    what: str, marks: list[int], away_s: float, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cuts = Cuts(monkeypatch, what, list(marks), away_s, how)
        async with two() as members:
            cuts.members = members
            await play(members)
            assert cuts.made
            assert all(member.wire.calls > 1 for member in members)
            for member in members:
                assert member.resent <= TWO_CHUNKS * len(marks)

    asyncio.run(main())


def test_a_link_that_does_not_come_back_costs_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "LINGER_S", 0.5)

    async def main() -> None:
        cuts = Cuts(monkeypatch, "result", [PART // 2], 30.0, "sever")
        async with two() as members:
            cuts.members = members
            now = RunClock().now()
            got = await asyncio.gather(
                *(
                    member.group.exchange(KEY, torch.ones(ELEMENTS), b"b" * 32, 100, now, now + 10, now + 35)
                    for member in members
                )
            )
            there = [sum(end - start for start, end in one.spans) for one in got]
            assert all(have >= ELEMENTS / 2 - ALIGN for have in there), "our own shard"
            assert min(there) <= ELEMENTS / 2 + ALIGN
            assert all("12D3" in one.reason for one, have in zip(got, there, strict=True) if have < ELEMENTS)

    asyncio.run(main())


def test_what_is_sent_again_is_the_same_whatever_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cuts = Cuts(monkeypatch, "contribution", [PART // 16, PART // 8], 0.1, "sever")
        async with two("int4") as members:
            cuts.members = members
            await play(members)
            assert cuts.made

    asyncio.run(main())
