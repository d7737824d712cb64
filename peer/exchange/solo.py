"""The strategy `solo`: an outer step with nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from torch import Tensor

from peer.exchange.strategy import ExchangeResult
from peer.outer.state import OuterState
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import RoundKey
from peer.run.presets import Method

# -- nobody ------------------------------------------------------------------------------------------------------------


class Alone:
    """Every outer step is a step with oneself: the method `none`, and what is left when there is nobody."""

    def __init__(self, method: Method, outer: OuterState, why: str = "the method never exchanges") -> None:
        self._method = method
        self._outer = outer
        self._why = why

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[Alone]:
        yield self

    def fetch_missed_state(self) -> None:
        return None

    async def exchange(self, work: WorkSnapshot, cut: WorkShare, closes_at: float) -> ExchangeResult:
        return self.stepped(work, cut, "solo", self._why)

    def late(self, work: WorkSnapshot, cut: WorkShare) -> ExchangeResult:
        return self.stepped(work, cut, "solo", "the fragment was due again")

    def stepped(
        self, work: WorkSnapshot, cut: WorkShare, outcome: Literal["solo", "refused"], reason: str
    ) -> ExchangeResult:
        """A solo outer step with this work."""

        def step(outer: OuterState) -> None:
            pair_step(self._method, outer, work.key.fragment, work.params, None, cut.share)

        return ExchangeResult(outcome, reason, step, cut.applied, cut.dropped)


def pair_step(
    method: Method, outer: OuterState, fragment: int, own: Tensor, partner: Tensor | None = None, share: float = 1.0
) -> None:
    """The outer step of a pair, or alone. `own` and `partner` are only read; of a method with a consensus of its own
    `partner` holds params and, after them, outer_params. `share`: of the own work, what counts."""
    theirs = (None, None) if partner is None else (partner[: own.numel()], partner[own.numel() :])
    outer.step(
        fragment,
        own,
        theirs[0],
        rule=method.rule,
        outer_lr=method.outer_lr,
        outer_momentum=method.outer_momentum,
        share=share,
        consensus=method.consensus if method.rule == "noloco" else None,
        partner_outer=theirs[1],
    )
