"""The interface of an exchange strategy, and the result of an exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, RoundKey, SwapReport


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """What a round's exchange gave."""

    outcome: Literal["exchanged", "solo", "refused", "carried"]
    """`carried`: no outer step; the work stays and is part of the fragment's next round."""
    reason: str
    step: Callable[[OuterState], None] = lambda outer: None
    """The outer step, for a worker thread."""
    applied: int = 0
    """Of the work, in tokens x elements."""
    dropped: int = 0
    members: tuple[PeerId, ...] = ()
    """Who exchanged, ourselves included."""
    report: SwapReport | None = None
    replaces: bool = False
    """Our state was replaced by another: the trainer keeps nothing of its own."""
    digest: Callable[[], bytes] = bytes
    """In groups, after the step: of the fragment's state."""


class ExchangeStrategy(Protocol):
    """One of the five choices of a method."""

    def open_round(
        self, key: RoundKey, opens_at: float, closes_at: float
    ) -> AbstractAsyncContextManager[ExchangeSession]:
        """A round begins: its search for others goes on until the owner leaves the context."""


@dataclass(frozen=True, slots=True)
class MissedState:
    """The others hold another state of a fragment than we, and it is here."""

    step: Callable[[OuterState], None]
    """Puts it in place; for a worker thread."""
    event: Callable[[], events.Event]
    """For the journal, afterwards."""


class ExchangeSession(Protocol):
    """An open round."""

    def fetch_missed_state(self) -> Awaitable[MissedState | None] | None:
        """Beside the training, until the round is due: wait for a state that we should have and lack. None, awaited or
        at once: there is none to be had. Never raises for what others do; a cancelled one leaves nothing running."""

    async def exchange(self, work: WorkSnapshot, cut: WorkShare, closes_at: float) -> ExchangeResult:
        """What the others gave for this work. Never raises for what others do; a cancelled one leaves nothing
        running."""

    def late(self, work: WorkSnapshot, cut: WorkShare) -> ExchangeResult:
        """The exchange was given up because the fragment is due again."""
