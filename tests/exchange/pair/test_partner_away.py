"""A partner that stops answering in the middle of its payload may come back; one that has sent nothing may not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import cast

import pytest
import torch

from peer.aio.threads import inline
from peer.codec.registry import EVERY
from peer.errors import PartnerLost, PartnerRefused, PartnerSilent
from peer.exchange.deadlines import ASSUMED_RATE, AWAY_S
from peer.exchange.pair.rates import SwapRates
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport
from peer.protocol.wire.payload import Sink, Source
from peer.transport.wire.resumption import LINGER_S

ELEMENTS, RATE = 1_000_000, 100_000.0
NBYTES = 2 * ELEMENTS
PARTNER = PeerRecord(PeerId("p"), RunId(b"R" * 32), (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Away:
    """Sends a payload at `RATE`, with a gap from `leaves` to `returns` (seconds)."""

    def __init__(self, leaves: float, returns: float, lasts: float = 0.0) -> None:
        self.leaves, self.returns, self._lasts = leaves, returns, lasts

    async def swap(self, partner: PeerRecord, key: RoundKey, source: Source, sink: Sink, *others: object) -> SwapReport:
        step, now = int(RATE / 10), asyncio.get_running_loop().time
        for offset in range(0, sink.nbytes, step):
            if self.leaves <= now() < self.returns:
                await asyncio.sleep(self.returns - now())
            sink.write(offset, bytes(min(step, sink.nbytes - offset)))
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._lasts)
        return SwapReport(0, sink.nbytes, 1.0, False)


def outcome(
    away: Away, error: Exception | None = None, *, asked: bool = True, lasts: float = 1.0, relayed: bool = False
) -> float:
    """Return the seconds that a swap took, or raise its error."""

    async def alive() -> bool:
        if asked and away.leaves <= asyncio.get_running_loop().time() < away.returns:
            raise error or PartnerLost("connection refused")
        return True

    async def main() -> float:
        rate = ASSUMED_RATE / lasts
        exchange = PairSwap(cast(Transport, away), VirtualClock(), EVERY["bf16"], inline, None, rates=SwapRates(rate))
        own = torch.zeros(ELEMENTS)
        terms = PartnerTerms(PARTNER, RoundKey(1, 0), 2.0, True, alive, relayed=relayed)
        swap: Awaitable[object] = exchange.swap(terms, own, own, own.clone())
        await swap
        return asyncio.get_running_loop().time()

    return run_virtual(main())


@pytest.mark.parametrize("away_s", [0.5, 5.0, AWAY_S - 1.0])
def test_one_that_comes_back_in_time_is_waited_for(away_s: float) -> None:
    assert outcome(Away(17.0, 17.0 + away_s)) == pytest.approx(NBYTES / RATE + away_s, abs=0.5)


@pytest.mark.parametrize(("leaves", "error"), [(0.0, None), (14.0, PartnerRefused("standing", "go"))])
def test_who_sent_nothing_or_refuses_is_not(leaves: float, error: Exception | None) -> None:
    with pytest.raises(PartnerLost, match="stopped answering"):
        outcome(Away(leaves, leaves + 5.0), error)


def test_over_a_relay_one_that_has_sent_nothing_is_asked_once_more() -> None:
    """The fault may be the relay's, so the partner is called once more over another relay."""
    assert outcome(Away(0.0, 1.5), relayed=True) == pytest.approx(NBYTES / RATE + 1.5, abs=0.5)
    with pytest.raises(PartnerLost, match="stopped answering"):
        outcome(Away(0.0, 2.5), relayed=True)
    with pytest.raises(PartnerLost, match="stopped answering"):
        outcome(Away(0.0, 1.5), PartnerRefused("standing", "go"), relayed=True)


def test_it_is_not_waited_for_for_ever() -> None:
    with pytest.raises(PartnerLost):  # it may also fail for its pace first
        outcome(Away(17.0, math.inf))


def test_nor_one_that_cannot_be_asked_however_long_the_whole_may_take() -> None:
    with pytest.raises(PartnerSilent, match="nothing came from the partner for 15 s"):
        outcome(Away(17.0, math.inf), asked=False, lasts=100.0)


def test_what_is_complete_is_not_given_up() -> None:
    """A partner whose payload is complete must not be given up, even if ours takes much longer than its budget."""
    assert LINGER_S < AWAY_S
    assert outcome(Away(math.inf, math.inf, lasts=200.0)) > 200.0
