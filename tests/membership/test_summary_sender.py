"""A peer sends summaries to the run's nodes: rarely, in few bytes, and to no other peer."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from peer.errors import PartnerLost, PartnerRefused
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.summary_sender import LOOK_S, RECEIPT_EVERY, UNWANTED_S, OwnSummary, SummarySender
from peer.ports.handler import UNWANTED
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.pair.receipt import ShownReceipt
from peer.protocol.summary.pace import EVERY_S, SummaryPace
from peer.signed_summary import seal_summary, unseal_summary
from peer.v1 import exchange_pb2 as pb
from tests.support.signed_receipts import RUN, Signing
from tests.support.summaries import shown, summary_of

DAY_S = 86400.0
LINE_BYTES = 480
"""Bytes that a call adds to its summary in both directions, with gRPC, HTTP/2, TLS, TCP and IP. Measured on a separate
network device, over an open connection."""
NODE = PeerId("node")


def node(name: str, status: Status = Status.SERVING) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, ("192.0.2.1:1",), True, 1, 1, 0, 0.0, status, 0.0, 1e12)


@dataclass
class Sending:
    """One sender, what it sent, and the answers of the nodes."""

    me: Signing = field(default_factory=Signing)
    status: Status = Status.TRAINING
    records: list[PeerRecord] = field(default_factory=lambda: [node("node")])
    nodes: frozenset[PeerId] = frozenset({NODE})
    answer: Callable[[], str] = lambda: ""
    kept: list[ShownReceipt] = field(default_factory=list)
    sent: list[tuple[float, PeerId, bytes]] = field(default_factory=list)
    clock: VirtualClock = field(default_factory=VirtualClock)

    async def send_summary(self, to: PeerRecord, raw: bytes, timeout_s: float) -> str:
        assert timeout_s <= 10
        self.sent.append((self.clock.now(), to.peer_id, raw))
        return self.answer()

    def shown(self) -> list[ShownReceipt]:
        return self.kept

    def sealed(self, receipts: tuple[ShownReceipt, ...]) -> bytes:
        return seal_summary(summary_of(self.me.id, self.clock.now(), receipts=receipts), self.me.identity)

    def during(self, seconds: float, meanwhile: Callable[[], Any] = lambda: None) -> None:
        async def main() -> None:
            word = OwnSummary(lambda: self.status, self.sealed, self)
            rng = random.Random(1)
            pace = partial(SummaryPace, rng)
            sender = SummarySender(cast(Any, self), self.clock, pace, word, lambda: self.records, lambda: self.nodes)
            running = asyncio.create_task(sender.run())
            await self.clock.sleep(seconds / 2)
            meanwhile()
            await self.clock.sleep(seconds / 2)
            assert not running.done(), running.exception()
            running.cancel()
            await asyncio.wait({running})

        run_virtual(main())

    def receipts_sent(self) -> list[int]:
        summaries = [unseal_summary(raw, RUN) for _, _, raw in self.sent]
        return [one.statement.key.round for summary in summaries for one in summary.receipts]


def test_it_is_told_at_most_once_a_minute() -> None:
    sending = Sending()
    sending.during(3600)
    times = [at for at, _, _ in sending.sent]
    assert 40 <= len(times) <= 45
    assert all(after - before >= EVERY_S for before, after in itertools.pairwise(times))


def test_a_day_of_summaries_is_below_a_megabyte() -> None:
    """Counts encoded bytes of summaries with numbers as large as those of a long run."""
    me, partner = Signing(), Signing()
    long = {"round": 2**31, "tokens": 2**45, "loss_round": 2**31, "due": 2**31, "exchanged": 2**31, "solo": 2**31}
    long |= {"refused": 2**31, "missed": 2**31, "bytes_up": 2**45, "bytes_down": 2**45}

    def size(count: int) -> int:
        receipts = tuple(shown(partner, me, round_) for round_ in range(count))
        raw = seal_summary(summary_of(me.id, receipts=receipts, device="cuda", version="10.10.10", **long), me.identity)
        return len(pb.SummaryRequest(summary=raw).SerializeToString())

    pace = SummaryPace(random.Random(1))
    calls = sum(pace.is_due(float(at), changed=True) for at in range(0, int(DAY_S), 2))
    assert calls * (LINE_BYTES + (size(1) + size(0)) / RECEIPT_EVERY) < 1e6


def test_a_changed_state_is_told_within_seconds() -> None:
    sending = Sending()

    def pause() -> None:
        sending.status = Status.PAUSED

    sending.during(170, pause)
    times = [at for at, _, _ in sending.sent]
    assert any(abs(at - times[0] - 85.0) <= LOOK_S + 1 for at in times)


def test_only_nodes_that_the_operator_names_are_told() -> None:
    sending = Sending(records=[node("stranger"), node("node", Status.TRAINING), node("closed")])
    sending.during(600)
    assert sending.sent == []


def test_each_of_several_nodes_is_told_as_often_as_one() -> None:
    sending = Sending(records=[node("b"), node("a")], nodes=frozenset(map(PeerId, "ab")))

    def pause() -> None:
        sending.status = Status.PAUSED

    sending.during(3600, pause)
    for name in "ab":
        times = [at for at, to, _ in sending.sent if to == name]
        assert 40 <= len(times) <= 46
        assert any(abs(at - times[0] - 1800.0) <= 2 * LOOK_S for at in times), "the pause is told at once"


def test_three_of_many_nodes_are_told_and_another_comes_for_one_that_is_gone() -> None:
    sending = Sending(records=[node(name) for name in "dcba"], nodes=frozenset(map(PeerId, "abcd")))

    def fails() -> str:
        if sending.sent[-1][1] == "a":
            raise PartnerLost("gone")
        return ""

    def die() -> None:
        sending.answer = fails

    sending.during(3600, die)
    middle = sending.sent[0][0] + 1800
    before, after = (Counter(to for at, to, _ in sending.sent if (at < middle) is early) for early in (True, False))
    assert set(before) == set("abc")
    assert set(after) == set("abcd")
    assert after["a"] < 8, "it is asked now and then"
    assert min(after[name] for name in "bcd") >= 17
    assert after.total() <= 3 * 23


def test_each_node_is_shown_a_receipt_of_each_signer_in_turn() -> None:
    me, partner = Signing(), Signing()
    kept = [shown(partner, me, number) for number in range(3)]
    sending = Sending(me=me, kept=kept, records=[node("b"), node("a")], nodes=frozenset(map(PeerId, "ab")))
    sending.during(900)
    everything = sending.sent
    for name in "ab":
        sending.sent = [one for one in everything if one[1] == name]
        assert sending.receipts_sent()[:5] == [0, 1, 2, 0, 1]
        assert len(sending.sent) >= 2 * len(sending.receipts_sent()) - 1


@pytest.mark.parametrize("error", [PartnerLost("gone"), PartnerRefused("busy", "later")])
def test_a_node_that_does_not_answer_misses_it_and_no_backlog_builds_up(error: Exception) -> None:
    def fails() -> str:
        raise error

    sending = Sending(answer=fails)

    def answers() -> None:
        sending.answer = lambda: ""

    sending.during(1200, answers)
    assert len(sending.sent) <= 20


def test_a_node_that_takes_none_is_left_alone_for_an_hour() -> None:
    sending = Sending(answer=lambda: UNWANTED)
    sending.during(2 * UNWANTED_S + 100)
    assert len(sending.sent) == 3


def test_a_receipt_is_sent_until_a_node_has_taken_it() -> None:
    me, partner = Signing(), Signing()
    sending = Sending(me=me, kept=[shown(partner, me, number) for number in range(3)])
    sending.answer = lambda: "rate" if len(sending.sent) < 3 else ""
    sending.during(600)
    assert sending.receipts_sent()[:4] == [0, 0, 0, 1]
