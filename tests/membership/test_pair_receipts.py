"""Partners end with each other's signature, whichever decides first. Requests and verifications are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from peer.aio.tasks import background_task
from peer.errors import HomeUnusable, PartnerLost, PartnerRefused
from peer.membership.pair_receipts import ASK_AGAIN, MOST_EARLY, TRIES, PairReceipts
from peer.membership.receipt_log import RECENT, ReceiptLog
from peer.observe.events import CheckpointFailed, Event, ReceiptRefused
from peer.ports.receipt_store import MemoryReceipts
from peer.ports.transport import Transport
from peer.protocol.messages import PayloadDigests, PeerId, PeerRecord, RoundKey, SwapReport
from peer.protocol.pair.receipt import ReceiptBounds, ShownReceipt, SignedOpinion, SwapOpinion, Transferred
from peer.protocol.pair.receipt_chain import ChainCheck, Countersigned, entry_record, hash_of, head_record, link_of
from peer.transport.signing import holds
from tests.support.signed_receipts import RUN, Signing, chained, countersigned

BOUNDS = ReceiptBounds(fragments=1, payload_bytes=10_000, rounds=200)
YES, NO = SwapOpinion(100, accepted=True, gain=3), SwapOpinion(50, accepted=False)


@dataclass
class Calls:
    """A transport that calls the other peers of the test directly."""

    me: PeerId
    others: dict[PeerId, PairReceipts] = field(default_factory=dict)
    failing: Exception | None = None
    made: int = 0
    asked: list[PeerId] = field(default_factory=list)

    async def receipt(self, partner: PeerRecord, signed: SignedOpinion, timeout_s: float) -> SignedOpinion | None:
        self.made += 1
        if self.failing is not None:
            raise self.failing
        return self.others[partner.peer_id].on_receipt(self.me, signed)

    async def shown_receipts(self, by: PeerRecord, timeout_s: float) -> list[ShownReceipt]:
        self.asked.append(by.peer_id)
        return self.others[by.peer_id].shown()


@dataclass
class Trusting:
    """A `Trust` whose peers the test sets."""

    proven: set[PeerId] = field(default_factory=set)
    heard: list[tuple[PeerId, PeerId]] = field(default_factory=list)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.proven

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None:
        self.heard.append((peer, by))


class Peer:
    """One peer of a test, with its receipts and its transport."""

    def __init__(self, store: MemoryReceipts | None = None) -> None:
        self.key, self.store, self.events, self.trust = Signing(), store or MemoryReceipts(), list[Event](), Trusting()
        self.calls = Calls(self.key.id)
        self.peers: dict[PeerId, PeerRecord] = {}
        self.log = ReceiptLog(RUN, self.key.id, self.key.signer, self.store, self.events.append)
        transport = cast(Transport, self.calls)
        self.receipts = PairReceipts(self.log, transport, lambda: self.peers, self.events.append, self.trust, BOUNDS)

    @property
    def id(self) -> PeerId:
        return self.key.id

    def knows(self, *others: Peer) -> None:
        for other in others:
            self.calls.others[other.id] = other.receipts
            self.peers[other.id] = cast(PeerRecord, Named(other.id))

    def chain(self) -> ChainCheck:
        check = ChainCheck(holds)
        for record in self.store.records:
            check.take(record)
        return check


@dataclass(frozen=True)
class Named:
    """A record, with only the parts that these tests use."""

    peer_id: PeerId


def reports(round_: int) -> tuple[SwapReport, SwapReport]:
    """Return the reports of both sides of a swap; the first side dialled."""
    one, other = bytes([round_]) * 32, b"o" * 32
    ours = SwapReport(10, 20, 1.0, sent_all=True, digests=PayloadDigests(one, other))
    theirs = SwapReport(20, 10, 1.0, sent_all=True, digests=PayloadDigests(other, one))
    return ours, theirs


def pair() -> tuple[Peer, Peer]:
    one, other = Peer(), Peer()
    one.knows(other)
    other.knows(one)
    return one, other


def running(test: Callable[[Peer, Peer], Any]) -> Callable[[], None]:
    """Run a test while both peers exchange receipts."""

    def run() -> None:
        async def main() -> None:
            one, other = pair()
            async with asyncio.timeout(60), background_task(one.receipts.run()), background_task(other.receipts.run()):
                await test(one, other)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def quiet() -> None:
    """Let all tasks run until none can continue."""
    for _ in range(20):
        await asyncio.sleep(0)


def decides(one: Peer, other: Peer, round_: int, opinion: SwapOpinion = YES, *, dialled: bool) -> None:
    report = reports(round_)[not dialled]
    one.receipts.record_swap(other.id, RoundKey(round_, 0), report, opinion, dialled=dialled)


@running
async def test_both_keep_the_receipt_when_the_one_that_answers_decides_first(one: Peer, other: Peer) -> None:
    decides(other, one, 5, NO, dialled=False)
    decides(one, other, 5, YES, dialled=True)
    await quiet()
    assert one.chain().partners[other.id].accepted_by_it == 0
    assert other.chain().partners[one.id].accepted_by_it == 1
    assert (one.chain().entries, other.chain().entries, one.calls.made, other.calls.made) == (1, 1, 1, 0)


@running
async def test_one_that_decides_later_is_asked_once_more_in_a_later_round(one: Peer, other: Peer) -> None:
    decides(one, other, 5, dialled=True)
    await quiet()
    assert one.calls.made == 1
    decides(other, one, 5, dialled=False)
    assert (one.receipts.kept, other.receipts.kept) == (0, 1), "the signature that came early is used"
    await quiet()
    assert one.calls.made == 1, "not in the same round"
    decides(one, other, 6, dialled=False)
    await quiet()
    assert (one.calls.made, one.receipts.kept) == (2, 1)


@running
async def test_a_partner_that_never_answers_is_forgotten(one: Peer, other: Peer) -> None:
    one.calls.failing = PartnerLost("gone")
    for round_ in range(5, 12):
        decides(one, other, round_, dialled=round_ == 5)
        await quiet()
    assert one.calls.made == TRIES


@running
async def test_a_partner_of_an_older_version_is_asked_once(one: Peer, other: Peer) -> None:
    one.calls.failing = PartnerRefused("unknown_call", "older")
    for round_ in range(5, 9):
        decides(one, other, round_, dialled=round_ == 5)
        await quiet()
    assert one.calls.made == 1


@running
async def test_a_false_signature_is_journaled_and_settles_the_swap(one: Peer, other: Peer) -> None:
    decides(one, other, 5, dialled=False)
    honest = SignedOpinion(RoundKey(5, 0), YES, other.key.signer.sign(b"something else"))
    assert one.receipts.on_receipt(other.id, honest) is not None, "ours is owed all the same"
    assert [event.kind for event in one.events] == ["receipt_refused"]
    assert isinstance(one.events[0], ReceiptRefused)
    decides(other, one, 5, dialled=True)
    await quiet()
    assert (one.receipts.kept, other.receipts.kept) == (0, 1)
    assert len(one.events) == 1, "nothing more is checked for this swap"


@running
async def test_what_did_not_arrive_is_not_signed(one: Peer, other: Peer) -> None:
    ours, _ = reports(5)
    one.receipts.record_swap(other.id, RoundKey(5, 0), replace(ours, sent_all=False), YES, dialled=True)
    one.receipts.record_swap(other.id, RoundKey(6, 0), replace(ours, digests=PayloadDigests()), YES, dialled=True)
    await quiet()
    assert one.calls.made == 0


@running
async def test_strangers_cannot_fill_the_memory(one: Peer, other: Peer) -> None:
    signed = SignedOpinion(RoundKey(5, 0), YES, b"s" * 64)
    for number in range(3 * MOST_EARLY):
        assert one.receipts.on_receipt(PeerId(f"stranger {number}"), signed) is None
    assert len(one.receipts._early) == MOST_EARLY


@running
async def test_a_stranger_is_vouched_for_by_those_that_are_proven_to_us(one: Peer, other: Peer) -> None:
    third, liar = Peer(), Peer()
    for signer in (third, liar):
        decides(other, signer, 3 if signer is third else 4, dialled=False)
        signed = replace(reports(3 if signer is third else 4)[0])
        signer.receipts.record_swap(other.id, RoundKey(3 if signer is third else 4, 0), signed, YES, dialled=True)
        signer.knows(other)
        await signer.receipts._request_signature(next(iter(signer.receipts._swaps.values())))
    assert {shown.statement.signer for shown in other.receipts.shown()} == {third.id, liar.id}
    one.knows(third)
    one.trust.proven = {third.id}
    decides(one, other, 5, dialled=False)
    await quiet()
    assert one.calls.asked == [other.id]
    assert one.trust.heard == [(other.id, third.id)], "the liar proved nothing to us"
    decides(one, other, 6, dialled=False)
    await quiet()
    assert one.calls.asked == [other.id], "not again so soon"
    decides(one, other, 5 + ASK_AGAIN, dialled=False)
    await quiet()
    assert one.calls.asked == [other.id] * 2


@pytest.mark.parametrize("wrong", ["partner", "run", "refused", "signature", "round", "fragment", "bytes"])
def test_a_receipt_that_says_something_else_does_not_vouch(wrong: str) -> None:
    one, other, third = Peer(), Peer(), Peer()
    one.trust.proven = {third.id}
    statement = third.key.said(other.id, 3, YES)
    match wrong:
        case "partner":
            statement = third.key.said(one.id, 3, YES)
        case "run":
            statement = replace(statement, run_id=type(RUN)(b"O" * 32))
        case "refused":
            statement = replace(statement, opinion=NO)
        case "round":
            statement = third.key.said(other.id, 250, YES)
        case "fragment":
            statement = replace(statement, key=RoundKey(3, 1))
        case "bytes":
            statement = replace(statement, sent=Transferred(b"s" * 32, 2**53))
    signature = (other if wrong == "signature" else third).key.signer.sign(statement.to_bytes())
    one.receipts._count_receipt(other.id, ShownReceipt(statement, signature))
    assert one.trust.heard == []


def test_the_chain_goes_on_after_a_restart() -> None:
    owner, partner, store = Peer(), Signing(), MemoryReceipts()
    for round_ in range(3):
        log = ReceiptLog(RUN, owner.id, owner.key.signer, store, owner.events.append)
        receipt = countersigned(owner.key, partner, round_, YES, YES)
        assert log.append(receipt)
        assert not log.append(receipt), "no round twice"
    owner.store = store
    assert owner.chain().entries == 3
    again = ReceiptLog(RUN, owner.id, owner.key.signer, store, owner.events.append)
    assert not again.append(countersigned(owner.key, partner, 1, YES, YES))
    assert [one.statement.key.round for one in again.shown()] == [2]
    assert not owner.events


def test_a_chain_that_was_changed_is_set_aside_and_a_new_one_begins() -> None:
    owner, partner, other = Peer(), Signing(), Signing()
    records = chained(owner.key, [countersigned(owner.key, partner, round_, YES, YES) for round_ in range(3)])
    for damaged in ([records[0], records[2]], chained(other, []), [b"nonsense"]):
        store, told = MemoryReceipts(), list[Event]()
        store.records = list(damaged)
        log = ReceiptLog(RUN, owner.id, owner.key.signer, store, told.append)
        assert log.append(countersigned(owner.key, partner, 7, YES, YES))
        owner.store = store
        assert owner.chain().entries == 1
        assert isinstance(told[0], CheckpointFailed)
        assert "a new chain begins" in told[0].reason


def test_a_long_chain_is_followed_at_its_end_alone() -> None:
    owner, partner, store = Peer(), Signing(), MemoryReceipts()
    receipt = countersigned(owner.key, partner, 0, YES, YES)
    signature = b"s" * 64
    store.records = [head_record(RUN, owner.id, owner.key.signer.sign)]
    for round_ in range(RECENT + 5):
        ours = replace(receipt.own_statement, key=RoundKey(round_, 0))
        entry = entry_record(hash_of(store.records[-1]), Countersigned(ours, YES, signature), lambda raw: b"o" * 64)
        store.records.append(entry)
    log = ReceiptLog(RUN, owner.id, owner.key.signer, store, owner.events.append)
    assert log.entries == RECENT + 5
    assert not owner.events
    assert not log.append(Countersigned(replace(receipt.own_statement, key=RoundKey(RECENT, 0)), YES, signature))
    assert log.append(Countersigned(replace(receipt.own_statement, key=RoundKey(RECENT + 5, 0)), YES, signature))
    assert link_of(store.records[-1]) == hash_of(entry)
    store.records.pop(RECENT)
    ReceiptLog(RUN, owner.id, owner.key.signer, store, owner.events.append)
    assert "does not follow" in str(owner.events)


def test_a_full_disk_costs_receipts_and_nothing_else() -> None:
    class Full(MemoryReceipts):
        full = True

        def append(self, record: bytes) -> None:
            if self.full:
                raise HomeUnusable("no space left")
            super().append(record)

    store = Full()
    owner, partner = Peer(store), Signing()
    assert not owner.log.append(countersigned(owner.key, partner, 1, YES, YES))
    store.full = False
    assert owner.log.append(countersigned(owner.key, partner, 2, YES, YES))
    assert owner.chain().entries == 1
    assert [event.kind for event in owner.events] == ["checkpoint_failed"]
