"""The topology `solo`: every outer step uses this peer's own work alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from peer.exchange.strategy import ExchangeResult
from peer.exchange.throughput import TransferMeter
from peer.outer.values import OwnWork
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import RoundKey


class SoloStrategy:
    """The exchange strategy of the method `none`, and a control for experiments: it never exchanges."""

    @property
    def transfers(self) -> TransferMeter:
        return TransferMeter()

    @property
    def members(self) -> int:
        return 1

    @property
    def shares_state(self) -> bool:
        return False

    def start_at(self, round_: int) -> None:
        """Do nothing: no round involves another peer."""

    def reset(self) -> None:
        """Do nothing: this strategy stores no knowledge of other peers' states."""

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[SoloSession]:
        yield SoloSession("the method never exchanges")

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> None:
        return None

    def note_state(self, fragment: int, digest: bytes) -> None:
        """Do nothing: no other peer requests the digest."""


class SoloSession:
    """A round without an exchange. Pairs use it too, when an exchange is not possible. `why`: the reason, for the
    journal."""

    def __init__(self, why: str) -> None:
        self._why = why

    def fetch_missed_state(self) -> None:
        return None

    @asynccontextmanager
    async def exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float
    ) -> AsyncIterator[ExchangeResult]:
        yield solo_result(work, work_share, "solo", self._why)

    def must_finish(self, due_in_s: float) -> bool:
        return False

    def late_result(self, work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
        return late_alone(work, work_share)


def solo_result(
    work: WorkSnapshot, work_share: WorkShare, outcome: Literal["solo", "refused"], reason: str
) -> ExchangeResult:
    """Return the result of a round without a partner: an outer step with our own work."""
    return ExchangeResult(
        outcome, reason, OwnWork(work.params, work_share.share), work_share.applied, work_share.dropped
    )


def late_alone(work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
    """Return the solo result for an exchange that was cancelled because its fragment is due again."""
    return solo_result(work, work_share, "solo", "the fragment was due again")
