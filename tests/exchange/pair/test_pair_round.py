"""A pair's round from snapshot to outer step: which memory is read and written, whatever the partners do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.codec.registry import EVERY
from peer.errors import ExchangeError, PartnerLost
from peer.exchange.buffers import Buffers
from peer.exchange.pair.acceptance import FINITE, PartnerAcceptance
from peer.exchange.pair.partners import PartnerMemory
from peer.exchange.pair.search import PartnerSearch
from peer.exchange.pair.strategy import PairSession, PairStrategy
from peer.exchange.pair.swap import PairSwap
from peer.exchange.strategy import ExchangeControls, ExchangeResult
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.outer.state import OuterState
from peer.ports.memory_store import NoMemoryStore
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, SwapReport
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.wire.payload import Sink, Source
from peer.run.plan import RunPlan
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

ELEMENTS, CHUNK = 300_000, 70_000
KEY = RoundKey(3, 0)
RUN = RunId(b"R" * 32)
ME = PeerId("me")
LAYOUT = Layout.whole([TensorSpec("w", (ELEMENTS,))])
Behave = Callable[[Source, Sink], Awaitable[None]]


def normal(seed: int, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)) / 4


class Partners:
    """A partner search that finds these partners one after another, and the transport to them."""

    def __init__(self, behave: dict[str, Behave]) -> None:
        self._behave = {PeerId(name): behaves for name, behaves in behave.items()}
        self.key, self.we_dial, self.left = KEY, True, list(self._behave)
        self.sent: dict[PeerId, bytes] = {}
        self.ends: list[tuple[Source, Sink]] = []

    impatient_with: PeerId | None = None
    """Do not wait for these strangers, as they claim to be ready too late."""
    relayed = False

    @property
    def patience_s(self) -> float | None:
        return 0.0 if self.locked == self.impatient_with else None

    @property
    def locked(self) -> PeerId | None:
        return self.left[0] if self.left else None

    async def partner(self, closes_at: float) -> PeerId | None:
        return self.locked

    async def alive(self, partner: PeerId) -> bool:
        return True

    def lost(self, partner: PeerId, why: str) -> None:
        self.left.remove(partner)

    def solo_reason(self) -> str:
        return "nobody is left"

    async def swap(self, partner: PeerRecord, key: RoundKey, source: Source, sink: Sink, *rest: object) -> SwapReport:
        self.ends.append((source, sink))
        self.sent[partner.peer_id] = source.read(0, source.nbytes)
        await self._behave[partner.peer_id](source, sink)
        return SwapReport(source.nbytes, sink.nbytes, 1.0, True)


def sends(values: torch.Tensor, upto: float = 1.0) -> Behave:
    """Return a partner that sends this part of its payload and disconnects."""

    async def behave(source: Source, sink: Sink) -> None:
        payload = EVERY["bf16"].encode(values)
        end = int(upto * len(payload))
        for at in range(0, end, CHUNK):
            sink.write(at, payload[at : min(end, at + CHUNK)])
            await asyncio.sleep(0)
        if upto < 1:
            raise PartnerLost("the stream ended in the middle")

    return behave


class Played:
    """A pair round with these partners, and the values before and after it."""

    def __init__(self, behave: dict[str, Behave], share: float, consensus: float) -> None:
        self.partners = Partners(behave)
        self.method = resolve(SyncSection(preset="noloco", consensus=consensus))
        self.state = OuterState.fresh(LAYOUT, normal(1))
        self.state.momentum.copy_(normal(2))
        self.params = normal(0) + self.state.params
        self.buffers = Buffers(self.method.vectors * ELEMENTS, 1)
        self.cut = WorkShare(share, int(share * 1000), 1000 - int(share * 1000))
        self.work = WorkSnapshot(KEY, self.params, 10, 100, 100, 1.0, 1.0)

    def twin(self) -> OuterState:
        """Return a copy of the state before the round."""
        twin = OuterState.fresh(LAYOUT, normal(1))
        twin.momentum.copy_(normal(2))
        return twin

    def round(self) -> PairSession:
        clock, bell = VirtualClock(), lambda *what: None
        exchange = PairSwap(cast(Any, self.partners), clock, EVERY["bf16"], inline, None)
        known = SimpleNamespace(
            peers={}, acquaintance=SimpleNamespace(met=bell), detector=SimpleNamespace(exchanged=bell)
        )
        reputation, diagnosis = Reputation(clock.now, bell), SlowPeerMonitor(clock.now, bell)
        pairs = PairStrategy(
            plan=RunPlan(RUN, ME, self.method, total_rounds=9, eval_every=9),
            outer=self.state,
            matchmaker=cast(Any, None),
            swaps=exchange,
            buffers=self.buffers,
            partners=PartnerMemory(RUN, clock, cast(Any, known), reputation, diagnosis, bell),
            acceptance=PartnerAcceptance(FINITE, cast(Any, None), inline, NoMemoryStore(), bell, bell),
            controls=ExchangeControls(lambda: True, lambda: "", bell),
        )
        return PairSession(pairs, cast(PartnerSearch, self.partners))

    def exchange(self) -> ExchangeResult:
        """Run the round and take the outer step with its result."""

        async def main() -> ExchangeResult:
            async with self.round().exchange(self.work, self.cut, 1e9) as got:
                assert self.state.digest(0) == self.twin().digest(0), "nothing moves before the step"
                self.state.step_with(0, got.values, self.method)
                return got

        return cast(ExchangeResult, run_virtual(main()))

    def expected(self, theirs: torch.Tensor | None) -> OuterState:
        """Return the expected state, computed on whole tensors, with the partner's params rounded to bf16."""
        twin, lr, consensus = self.twin(), self.method.outer_lr, self.method.consensus
        outer, momentum, mean = twin.params, twin.momentum, self.params.clone()
        if self.cut.share < 1:
            mean.sub_(outer).mul_(self.cut.share).add_(outer)
        came = None if theirs is None else theirs.bfloat16().float()
        if came is not None:
            mean = came[:ELEMENTS].add(mean).mul(0.5)
        momentum.mul_(self.method.outer_momentum)
        if came is None or consensus == lr:
            momentum.add_(mean.sub(outer).mul(lr))
        else:
            mean_outer = came[ELEMENTS:].add(outer).mul(0.5)
            momentum.add_(mean.sub(mean_outer).mul(lr)).add_(mean_outer.sub(outer).mul(consensus))
        outer.add_(momentum)
        return twin


BAD = normal(5).index_fill_(0, torch.tensor([ELEMENTS - 1]), float("nan"))
FAULTS: dict[str, Behave] = {
    "half": sends(normal(6), 0.5),
    "nan": sends(BAD),
    "far": sends(1e6 * normal(7)),
    "nothing": sends(normal(8), 0.0),
}


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("consensus", [0.7, 0.5])
def test_after_every_fault_the_next_partner_is_stepped_with_as_if_it_were_the_first(
    share: float, consensus: float
) -> None:
    vectors = 1 if consensus == 0.7 else 2
    theirs = torch.cat([normal(10 + part) + normal(1) for part in range(vectors)])
    faults = {name: fault if vectors == 1 else sends(torch.cat([BAD, BAD])) for name, fault in FAULTS.items()}
    played = Played({**faults, "good": sends(theirs)}, share, consensus)
    before = played.params.clone()
    got = played.exchange()
    assert (got.outcome, got.members) == ("exchanged", (ME, PeerId("good")))
    assert played.state.digest(0) == played.expected(theirs).digest(0)
    assert torch.equal(played.params, before), "the trainer's snapshot is only read"
    assert len(set(played.partners.sent.values())) == 1, "everybody is sent the same"
    assert played.buffers.made == 1


def test_who_would_be_ready_too_late_is_let_go_at_once_and_not_blamed() -> None:
    theirs = normal(10) + normal(1)
    played = Played({"slow": sends(normal(3)), "good": sends(theirs)}, 1.0, 0.7)
    played.partners.impatient_with = PeerId("slow")
    got = played.exchange()
    assert (got.outcome, got.members) == ("exchanged", (ME, PeerId("good")))
    assert set(played.partners.sent) == {PeerId("good")}
    assert played.state.digest(0) == played.expected(theirs).digest(0)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_with_nobody_left_the_step_is_the_solo_step(share: float) -> None:
    played = Played(dict(FAULTS), share, 0.7)
    got = played.exchange()
    assert got.outcome == "refused"
    assert played.state.digest(0) == played.expected(None).digest(0)


@pytest.mark.parametrize("ends", ["exchanged", "lost"])
def test_who_comes_late_reads_and_writes_nothing(ends: str) -> None:
    """Fault: a late partner would write into the buffer that the next round has borrowed, or read the snapshot while
    the trainer changes it."""
    theirs = normal(10) + normal(1)
    played = Played({"one": sends(theirs, 1.0 if ends == "exchanged" else 0.5)}, 1.0, 0.7)
    played.exchange()
    with played.buffers.acquire() as buffer:
        before = buffer.clone()
        ((source, sink),) = played.partners.ends
        with pytest.raises(ExchangeError):
            sink.write(0 if ends == "exchanged" else sink.nbytes // 2, b"\1" * 1000)
        assert torch.equal(buffer, before)
        with pytest.raises(ExchangeError):
            source.read(0, 1000)


def test_a_round_that_is_given_up_in_the_middle_leaves_everything_and_gives_back_what_it_was_lent() -> None:
    reached = asyncio.Event()

    async def hangs(source: Source, sink: Sink) -> None:
        sink.write(0, EVERY["bf16"].encode(normal(6))[: 2 * CHUNK])
        reached.set()
        await asyncio.Event().wait()

    played = Played({"one": hangs}, 1.0, 0.7)

    async def main() -> None:
        entered = AsyncExitStack()
        scope = played.round().exchange(played.work, played.cut, 1e9)
        exchanging = asyncio.create_task(entered.enter_async_context(scope))
        await reached.wait()
        exchanging.cancel()
        await asyncio.wait({exchanging})
        assert exchanging.cancelled()

    run_virtual(main())
    assert played.state.digest(0) == played.twin().digest(0)
    with played.buffers.acquire():
        assert played.buffers.made == 1
