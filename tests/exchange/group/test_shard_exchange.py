"""A member's part in a shard, with owners that disconnect or lie in the middle of a result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.codec.registry import EVERY
from peer.errors import BadPayload, PartnerLost
from peer.exchange.group.context import GroupContext
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.outcome import ShardOutcome
from peer.exchange.group.shard_exchange import LOST_TRIES, ShardExchange, ShardResultSink
from peer.exchange.throughput import TransferMeter
from peer.identity import Identity
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import digest_of, statement
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink, Shard
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status
from peer.protocol.wire.payload import Source
from peer.transport.signing import KeySigner

RUN, KEY, ELEMENTS = RunId(b"R" * 32), RoundKey(0, 0), 1000
OWNER, ME = Identity.generate(), PeerId("me")
PEER = PeerId(OWNER.peer_id)
MEMBERS = tuple(sorted((ME, PEER)))
ROSTER = Roster(RUN, KEY, PEER, Base(b"d" * 32), MEMBERS, MEMBERS)
SHARD = Shard(0, 0, ELEMENTS, PEER)
MEAN = EVERY["fp32"].encode(torch.full((ELEMENTS,), 2.0))


@dataclass
class Link:
    """A transport to the owner. `says`: one function for each call in turn, which plays the owner."""

    says: list[Callable[[Source | None, ResultSink], None]]
    openings: list[ContributionHeader] = field(default_factory=list)

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        self.openings.append(opening)
        self.says[len(self.openings) - 1](source, sink)
        return Receipt(opening.nbytes, sink.nbytes, 1.0)


def gives(payload: bytes, share: float = 1.0, named: tuple[int, ...] = (0, 1)) -> Callable[..., None]:
    def say(source: Source | None, sink: ResultSink) -> None:
        sink.begins(named, KeySigner(OWNER).sign(statement(ROSTER.name(), 0, digest_of(payload, named))), len(payload))
        sink.write(0, payload[: int(share * len(payload))])
        if share < 1:
            raise PartnerLost("it broke off")

    return say


def breaks(source: Source | None, sink: ResultSink) -> None:
    raise PartnerLost("it broke off")


def shared(
    link: Link,
    gradient: torch.Tensor | None = None,
    outer: torch.Tensor | None = None,
    usual: float | None = None,
) -> tuple[ShardOutcome, BadPayload | None, torch.Tensor, Reputation]:
    """Return the outcome, the error, the mean and the reputation of the owner."""

    async def main() -> Any:
        clock = VirtualClock()
        reputation, now = Reputation(clock.now, lambda event: None), clock.now()
        record = PeerRecord(PEER, RUN, ("x:1",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 1e6)
        context = SimpleNamespace(
            terms=SimpleNamespace(me=ME, mean=MeanTerms(codec=EVERY["int4"], result_codec=EVERY["fp32"])),
            signer=KeySigner(Identity.generate()),
            transport=link,
            clock=clock,
            reputation=reputation,
            offload=inline,
            peer_table=SimpleNamespace(peers={PEER: record}, detector=FailureDetector(clock.now)),
            transfers=TransferMeter(),
        )
        into = torch.full((ELEMENTS,), 7.0)
        own = torch.ones(ELEMENTS) if gradient is None else gradient
        sharing = ShardExchange(cast(GroupContext, context), ROSTER, own, 100, into, outer, usual)
        given = await sharing.contribute(SHARD, now + 60)
        try:
            return sharing.check(SHARD, given) if given.result_digest else given, None, into, reputation
        except BadPayload as error:
            return given, error, into, reputation

    return cast(Any, run_virtual(main()))


def test_the_result_lies_where_the_mean_is_put_together() -> None:
    given, wrong, into, _ = shared(Link([gives(MEAN)]))
    assert (wrong, given.includes_us, given.contributors) == (None, True, (0, 1))
    assert given.result_digest == digest_of(MEAN, (0, 1))
    assert given.measured is not None
    assert given.measured.rms == pytest.approx(2.0)
    assert bool((into == 2.0).all())


def test_when_a_result_breaks_off_it_is_asked_for_alone() -> None:
    link = Link([breaks, gives(MEAN, 0.5), gives(MEAN)])
    given, wrong, into, _ = shared(link)
    assert [opening.nbytes > 0 for opening in link.openings] == [True, True, False]
    assert wrong is None
    assert given.measured is not None
    assert bool((into == 2.0).all())


def test_nothing_is_read_of_our_part_once_the_result_has_begun() -> None:
    def late(source: Source | None, sink: ResultSink) -> None:
        sink.begins((0, 1), b"", len(MEAN))
        assert source is not None
        source.read(0, 10)

    link = Link([late, gives(MEAN)])
    given, _, _, _ = shared(link)
    assert [opening.nbytes > 0 for opening in link.openings] == [True, False]
    assert given.result_digest


def test_an_owner_that_is_lost_again_and_again_is_left() -> None:
    link = Link([breaks] * (LOST_TRIES + 1))
    given, _, _, _ = shared(link)
    assert (len(link.openings), given.result_digest) == (LOST_TRIES, b"")


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (EVERY["fp32"].encode(torch.full((ELEMENTS,), math.nan)), "not_finite"),
        (EVERY["fp32"].encode(torch.full((ELEMENTS,), 101.0)), "norm"),
    ],
)
def test_a_result_that_cannot_be_is_refused(payload: bytes, code: str) -> None:
    given, wrong, _, _ = shared(Link([gives(payload)]))
    assert wrong is not None
    assert wrong.code == code
    assert given.measured is None


@pytest.mark.parametrize(
    ("outer", "usual", "code"),
    [(102.0, None, None), (100.0, None, "norm"), (100.0, 10.2, None), (100.0, 10.0, "norm"), (1020.0, 0.1, None)],
)
def test_a_result_may_be_far_larger_than_the_part_of_a_slow_machine(
    outer: float, usual: float | None, code: str | None
) -> None:
    """A machine that did one step while the others did a hundred accepts a long result, but none that is longer than
    the params or than usual."""
    payload = EVERY["fp32"].encode(torch.full((ELEMENTS,), 101.0))
    given, wrong, _, _ = shared(Link([gives(payload)]), outer=torch.full((ELEMENTS,), outer), usual=usual)
    assert (wrong.code if wrong is not None else None) == code
    rms = None if given.measured is None else given.measured.rms
    assert rms == (pytest.approx(101.0) if code is None else None)


def test_a_result_with_another_s_name_under_it_is_refused() -> None:
    def forged(source: Source | None, sink: ResultSink) -> None:
        sink.begins((0, 1), KeySigner(OWNER).sign(statement(ROSTER.name(), 0, digest_of(MEAN, (0,)))), len(MEAN))
        sink.write(0, MEAN)

    _, wrong, _, _ = shared(Link([forged]))
    assert wrong is not None
    assert wrong.code == "signature"


@pytest.mark.parametrize("named", [(2,), (1, 0), (0, 0), (2**20,)])
def test_names_that_cannot_be_are_an_offence(named: tuple[int, ...]) -> None:
    def lies(source: Source | None, sink: ResultSink) -> None:
        sink.begins(named, b"", len(MEAN))

    given, _, _, reputation = shared(Link([lies]))
    assert not given.result_digest
    assert reputation.exclusion_reason(PEER)


@pytest.mark.parametrize("nbytes", [0, len(MEAN) - 1, len(MEAN) + 1, 2**63])
def test_a_length_that_is_not_due_is_an_offence(nbytes: int) -> None:
    def lies(source: Source | None, sink: ResultSink) -> None:
        sink.begins((0, 1), b"", nbytes)

    given, _, into, reputation = shared(Link([lies]))
    assert not given.result_digest
    assert "length" in reputation.exclusion_reason(PEER)
    assert bool((into == 7.0).all())


def test_what_comes_late_is_not_written() -> None:
    into = torch.zeros(ELEMENTS)
    taking = ShardResultSink(EVERY["fp32"], into, 2, lambda: None, lambda: 0.0)
    taking.begins((0,), b"", len(MEAN))
    taking.close()
    with pytest.raises(PartnerLost):
        taking.write(0, MEAN)
    assert not into.any()
