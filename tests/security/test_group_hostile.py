"""A raw gRPC client against a serving member of a group: invalid bytes are refused, recorded against their sender, and
leave nothing behind. A reducer accepts no more than it has room for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.errors import PartnerLost, PartnerRefused
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reducer import ShardReducer
from peer.identity import Identity
from peer.membership.reputation import Reputation
from peer.observe.status.codec import to_json
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply, JoinStatus, Roster
from peer.protocol.group.shards import ContributionHeader, Shard, ShardResult, UploadSlot
from peer.protocol.messages import PeerId, RoundKey, RunId
from peer.protocol.wire.frames import HEADER, Kind, PayloadWriter, pack
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.signing import KeySigner
from peer.transport.wire.group_messages import contribute_open
from peer.transport.wire.refusals import TOKEN_KEY
from peer.v1 import exchange_pb2 as pb
from tests.security.test_exchange_hostile import Victim, code_of, drained

KEY = RoundKey(3, 0)
OPENING = ContributionHeader(KEY, b"r" * 32, 0, 100, 1000)
BASE = pb.GroupBase(digest=b"d" * 32, since=-1)


class Place(UploadSlot):
    def __init__(self, group: Group) -> None:
        self.sink = BufferSink(1000)
        self._group = group

    def complete(self) -> None:
        self._group.completed += 1

    async def result(self) -> ShardResult:
        return ShardResult(b"mean", (0,))

    def leave(self) -> None:
        self._group.left.set()


class Group:
    """A handler that gives every member a place and counts its calls."""

    def __init__(self) -> None:
        self.joins, self.completed = 0, 0
        self.left = asyncio.Event()

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        self.joins += 1
        return JoinReply(JoinStatus.WAIT)

    async def on_contribution(self, sender: PeerId, opening: ContributionHeader) -> UploadSlot:
        return Place(self)

    def on_held(self, fragment: int) -> Base | None:
        return None


class Attack:
    """A caller with a token that writes arbitrary bytes."""

    def __init__(self, victim: Victim, reputation: Reputation, channel: Any, token: bytes, caller: Identity) -> None:
        self.group: Group = victim.owner.group  # type: ignore[attr-defined]
        self.reputation = reputation
        self._channel = channel
        self._metadata = ((TOKEN_KEY, token),)
        self.me = PeerId(caller.peer_id)

    async def send(self, method: str, *messages: bytes) -> str:
        """Send frames. Return how the call ended."""
        call = self._channel.stream_stream(f"/peer.v1.Exchange/{method}")(metadata=self._metadata)
        try:
            for message in messages:
                await call.write(message)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # already refused; the call's status has the code
        return code_of(await drained(call))


def attack(test: Callable[[Attack], Awaitable[None]]) -> None:
    async def main() -> None:
        reputation = Reputation(RunClock().now, lambda event: None)
        victim, caller = Victim(reputation), Identity.generate()
        victim.owner.group = Group()  # type: ignore[attr-defined]
        await victim.start()
        try:
            async with asyncio.timeout(60), victim.channel() as channel:
                token = await victim.hello(channel, caller)
                await test(Attack(victim, reputation, channel, token, caller))
        finally:
            await victim.transport.close()

    asyncio.run(main())


def chunks(*sizes: int) -> list[bytes]:
    writer = PayloadWriter()
    return [*(writer.chunk(b"x" * size) for size in sizes), writer.end()]


def torn(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


OPEN = contribute_open(OPENING, 0.0)


@pytest.mark.parametrize(
    ("code", "messages"),
    [
        ("frame", [b"\x00" * 100]),
        ("order", [pack(Kind.END, 0, b"")]),
        ("frame", [pack(Kind.OPEN, 0, b"\xff\xff")]),
        ("frame", [pack(Kind.OPEN, 0, pb.ContributeOpen(roster=b"short").SerializeToString())]),
        ("tokens", [contribute_open(ContributionHeader(KEY, b"r" * 32, 0, 0, 1000), 0.0)]),
        ("tokens", [contribute_open(ContributionHeader(KEY, b"r" * 32, 0, 2**60, 1000), 0.0)]),
        ("frame", [contribute_open(OPENING, float("nan"))]),
        ("frame", [contribute_open(OPENING, -1.0)]),
        ("have", [contribute_open(replace(OPENING, have=7), 0.0)]),
        ("frame", [contribute_open(replace(OPENING, signature=b"s" * 63), 0.0)]),
        ("request", [b"\x00" * 50_000]),
        ("bad_payload:length", [OPEN, *chunks(600)]),
        ("bad_payload:length", [OPEN, *chunks(600, 600)]),
        ("bad_payload:checksum", [OPEN, torn(chunks(1000)[0])]),
        ("bad_payload:digest", [OPEN, chunks(1000)[0], pack(Kind.END, 1000, b"0" * 32)]),
        ("bad_payload:order", [OPEN, OPEN]),
        ("bad_payload:frame", [OPEN, b"short"]),
        ("bad_payload:order", [OPEN, chunks(500, 500)[1]]),
    ],
)
def test_wrong_bytes_of_a_contribution_are_an_offence(code: str, messages: list[bytes]) -> None:
    async def test(attack: Attack) -> None:
        assert await attack.send("Contribute", *messages) == code
        assert attack.reputation.exclusion_reason(attack.me) or code == "request", "one is enough"
        assert to_json(attack.reputation.report())["refusals"][0]["caller"] == attack.me
        assert attack.group.completed == 0
        if messages[0] == OPEN:
            await attack.group.left.wait()

    attack(test)


def test_a_contribution_that_ends_in_the_middle_gives_its_place_back() -> None:
    async def test(attack: Attack) -> None:
        assert await attack.send("Contribute", OPEN, chunks(500, 500)[0]) == "lost"
        await attack.group.left.wait()
        assert attack.group.completed == 0
        assert not attack.reputation.exclusion_reason(attack.me), "a bad line is no crime"

    attack(test)


@pytest.mark.parametrize(
    "request_",
    [
        b"\xff\xff",
        b"",
        pb.JoinRoundRequest(round=2**60, base=BASE).SerializeToString(),
        pb.JoinRoundRequest(base=pb.GroupBase(digest=b"short", since=-1)).SerializeToString(),
        pb.JoinRoundRequest(base=pb.GroupBase(digest=b"d" * 32, electors=["b", "a"], since=1)).SerializeToString(),
        pb.JoinRoundRequest(base=pb.GroupBase(digest=b"d" * 32, electors=["a"], since=-1)).SerializeToString(),
        pb.JoinRoundRequest(
            base=pb.GroupBase(digest=b"d" * 32, electors=[f"{n:03d}" for n in range(65)], since=1)
        ).SerializeToString(),
        pb.JoinRoundRequest(base=BASE, wait_s=float("nan")).SerializeToString(),
        pb.JoinRoundRequest(base=BASE, wait_s=-1).SerializeToString(),
        b"\x00" * 20_000,
    ],
)
def test_wrong_joins_never_reach_the_group(request_: bytes) -> None:
    async def test(attack: Attack) -> None:
        assert await attack.send("JoinRound", request_) == "request"
        assert attack.group.joins == 0
        assert to_json(attack.reputation.report())["refusal_counts"] == {"request": 1}

    attack(test)


def test_without_a_token_nothing_is_served() -> None:
    async def test(attack: Attack) -> None:
        attack._metadata = ()  # type: ignore[assignment]
        for method in ("JoinRound", "Held", "Contribute"):
            assert await attack.send(method, OPEN) == "no_token"
        assert (attack.group.joins, attack.group.completed) == (0, 0)

    attack(test)


def test_a_frame_header_alone_is_no_opening() -> None:
    async def test(attack: Attack) -> None:
        assert await attack.send("Contribute", OPEN[: HEADER.size]) == "length"

    attack(test)


# -- the owner's reducer -----------------------------------------------------------------------------------------------

MEMBERS = tuple(PeerId(name) for name in "abcd")


def desk(lacking: str = "") -> ShardReducer:
    clock = RunClock()
    terms = GroupTerms(
        run_id=RunId(b"R" * 32),
        me=MEMBERS[0],
        elements=(4,),
        mean=MeanTerms(codec=EVERY["fp32"], result_codec=EVERY["fp32"]),
        max_group=4,
    )
    context = GroupContext(
        terms,
        signer=KeySigner(Identity.generate()),
        transport=None,  # type: ignore[arg-type]
        clock=clock,
        peer_table=None,  # type: ignore[arg-type]
        reputation=Reputation(clock.now, lambda event: None),
        offload=_inline,
    )
    roster = Roster(RunId(b"R" * 32), KEY, MEMBERS[0], Base(b"d" * 32), MEMBERS, MEMBERS)
    return ShardReducer(context, roster, Shard(0, 0, 4, MEMBERS[0]), lambda peers: lacking, clock.now() + 0.05)


async def _inline(work: Callable[[], Any]) -> Any:
    return work()


def opening(nbytes: int = 16, transfer: int = 0) -> ContributionHeader:
    return ContributionHeader(KEY, b"r" * 32, 0, 100, nbytes, transfer)


def own(*values: float) -> tuple[BytesSource, int, torch.Tensor]:
    """Return an owner's own contribution to its shard: the payload's source, its tokens, and the result's tensor."""
    return BytesSource(encoded(*values)), 100, torch.empty(len(values))


def encoded(*values: float) -> bytes:
    return EVERY["fp32"].encode(torch.tensor(values))


@pytest.mark.parametrize("transfer", [0, 5], ids=["does not go on", "goes on"])
def test_a_member_holds_one_place_however_often_it_comes(transfer: int) -> None:
    owner = desk()
    places = [owner.open_upload(MEMBERS[1], opening(transfer=transfer)) for _ in range(20)]
    other = owner.open_upload(MEMBERS[2], opening())
    for place in places[:-1]:
        assert place.sink is not None
        with pytest.raises(PartnerLost, match="another stream"):
            place.sink.write(0, b"x" * 16)
    for place in places:
        place.leave()
        place.leave()
    assert len({id(coming.buffer) for coming in owner._pending.values()}) == (2 if transfer else 1)
    assert other.sink is not None
    other.sink.write(0, b"x" * 16)


@pytest.mark.parametrize("nbytes", [1, 15, 17, 2**50])
def test_nothing_is_allocated_for_another_length(nbytes: int) -> None:
    owner = desk()
    with pytest.raises(PartnerRefused, match="bad_payload:length"):
        owner.open_upload(MEMBERS[1], opening(nbytes))
    assert owner._context.reputation.exclusion_reason(MEMBERS[1])


def test_too_few_contributors_make_no_result() -> None:
    async def main() -> None:
        owner = desk("1 of the 3 peers that it takes")
        with pytest.raises(PartnerRefused, match="1 of the 3"):
            await owner.run(*own(1, 2, 3, 4))
        with pytest.raises(PartnerRefused, match="none"):
            await owner.result_for(MEMBERS[1])

    asyncio.run(main())


def brought(place: UploadSlot, *values: float, share: float = 1.0) -> None:
    """Deliver its payload, up to this part of it."""
    writer, payload = PayloadWriter(), encoded(*values)
    assert place.sink is not None
    assert place.reader is not None
    writer.skip(payload[: place.have])
    chunk = payload[place.have : int(len(payload) * share)]
    frame = place.reader.take(writer.chunk(chunk))
    place.sink.write(frame.offset, frame.body)
    if share == 1.0:
        place.reader.take(writer.end())
        place.complete()


def test_a_contribution_is_taken_once_and_never_late() -> None:
    async def main() -> None:
        owner = desk()
        brought(owner.open_upload(MEMBERS[1], opening()), 3, 3, 3, 3)
        late = owner.open_upload(MEMBERS[2], opening())
        with pytest.raises(PartnerRefused, match="have"):
            owner.open_upload(MEMBERS[1], opening())
        result = await owner.run(*own(1, 1, 1, 1))
        assert (result.payload, result.named) == (encoded(2, 2, 2, 2), (0, 1))
        with pytest.raises(PartnerRefused, match="late"):
            late.complete()
        with pytest.raises(PartnerRefused, match="late"):
            owner.open_upload(MEMBERS[3], opening())
        assert await owner.open_upload(MEMBERS[3], opening(0)).result() == result, "who is late may have the result"

    asyncio.run(main())


def test_what_broke_off_goes_on_or_does_not_count() -> None:
    async def main() -> None:
        owner = desk()
        for member in MEMBERS[1:3]:
            brought(first := owner.open_upload(member, opening(transfer=5)), 3, 3, 3, 3, share=0.5)
            first.leave()
        again = owner.open_upload(MEMBERS[1], opening(transfer=5))
        assert (again.transfer, again.have) == (5, 8)
        brought(again, 3, 3, 3, 3)
        waiting = owner.open_upload(MEMBERS[1], opening(transfer=5))
        assert (waiting.sink, waiting.have) == (None, 16), "it is here; the result may be waited for"
        result = await owner.run(*own(1, 1, 1, 1))
        assert (result.payload, result.named) == (encoded(2, 2, 2, 2), (0, 1)), "in part it does not count"
        assert not owner._pending

    asyncio.run(main())


@pytest.mark.parametrize("other", [opening(transfer=6), opening(), replace(opening(transfer=5), tokens=10)])
def test_another_transfer_begins_anew(other: ContributionHeader) -> None:
    owner = desk()
    brought(owner.open_upload(MEMBERS[1], opening(transfer=5)), 3, 3, 3, 3, share=0.5)
    place = owner.open_upload(MEMBERS[1], other)
    assert place.have == 0
    brought(place, 5, 5, 5, 5)


def test_nobody_goes_on_with_wrong_bytes() -> None:
    owner = desk()
    brought(place := owner.open_upload(MEMBERS[1], opening(transfer=5)), 3, 3, 3, 3, share=0.5)
    place.reject()
    assert owner.open_upload(MEMBERS[1], opening(transfer=5)).have == 0


def test_a_result_that_everybody_has_is_let_go() -> None:
    async def main() -> None:
        owner = desk()
        result = await owner.run(*own(1, 1, 1, 1))
        places = [owner.open_upload(member, opening(0)) for member in MEMBERS[1:]]
        for place in places:
            assert await place.result() == result
            place.mark_delivered()
        with pytest.raises(PartnerRefused, match="every member has had"):
            await places[0].result()

    asyncio.run(main())


def test_more_of_a_result_than_there_is_is_an_offence() -> None:
    async def test(attack: Attack) -> None:
        opened = contribute_open(replace(OPENING, transfer=5, have=len(b"mean") + 1), 0.0)
        Place.transfer = 5
        try:
            assert await attack.send("Contribute", opened, *chunks(1000)) == "request"
        finally:
            Place.transfer = 0
        assert to_json(attack.reputation.report())["refusals"][0]["caller"] == attack.me

    attack(test)
