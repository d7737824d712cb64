"""The interface of an exchange strategy, and the data that an exchange returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from peer.exchange.throughput import TransferMeter
from peer.outer.values import GroupState, NoStep, OuterValues
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, RoundKey, SwapReport


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of a round's exchange. Nothing has moved yet: `peer.rounds.commit` takes the outer step."""

    outcome: Literal["exchanged", "solo", "refused", "carried"]
    """`carried`: no outer step; the work stays and is part of the fragment's next round."""
    reason: str
    values: OuterValues = field(default_factory=NoStep)
    applied: int = 0
    """Work that enters the outer step, in tokens x elements."""
    dropped: int = 0
    members: tuple[PeerId, ...] = ()
    """The peers that exchanged, ourselves included."""
    report: SwapReport | None = None


@dataclass(frozen=True, slots=True)
class MissedState:
    """A later state of a fragment that the group has and we lacked. It is here, and not in place yet."""

    state: GroupState
    donor: PeerId
    reason: str
    """Why we lacked it, for the journal."""


@dataclass(frozen=True, slots=True)
class ExchangeControls:
    """The lines between this peer's own rounds and an exchange."""

    wants_partners: Callable[[], bool]
    """Whether others are still looked for: not when we are leaving or pausing."""
    no_exchange_reason: Callable[[], str]
    """Why nothing is to be sent now, for a person; empty: it may be."""
    set_activity: Callable[[str], None]
    """Told what is going on, for `peer status`."""
    exchange_fits: Callable[[float], bool] = lambda ends_at: True
    """Whether an exchange that may last until then (run time) ends before a pause that is known already."""
    transfers: TransferMeter = field(default_factory=TransferMeter)
    """The transfers under way."""


class ExchangeStrategy(Protocol):
    """One way to exchange: with a random partner, with a group, or with nobody."""

    @property
    def members(self) -> int:
        """How many peers take part in an exchange, as far as is seen, ourselves included."""

    @property
    def transfers(self) -> TransferMeter:
        """The transfers under way."""

    @property
    def shares_state(self) -> bool:
        """Whether a peer ends with the state that the others have."""

    def start_at(self, round_: int) -> None:
        """Learn this peer's first round."""

    def reset(self) -> None:
        """Forget what the others had: the operator refounded the run."""

    def open_round(
        self, key: RoundKey, opens_at: float, closes_at: float
    ) -> AbstractAsyncContextManager[ExchangeSession]:
        """Begin a round. Its search for others continues until the caller leaves the context."""

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> MissedState | None:
        """Outside of the rounds: return the group's state of a fragment where it is another than ours. `at_last`: every
        peer has played the last round. Never raises for what others do."""

    def note_state(self, fragment: int, digest: bytes) -> None:
        """Learn that the fragment's state has this digest now. Called after every change, with what
        `OuterState.step_with` returned."""


class ExchangeSession(Protocol):
    """An open round."""

    def fetch_missed_state(self) -> Awaitable[MissedState | None] | None:
        """Wait, beside the training, for a state that we should have and lack. None, awaited or at once: there is none
        to be had. Never raises for what others do; a cancelled one leaves nothing running."""

    def exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float
    ) -> AbstractAsyncContextManager[ExchangeResult]:
        """Enter with what the others gave for this work. The values of the result lie in borrowed memory: nobody may
        read them once the context is left. Never raises for what others do; a cancelled one leaves nothing running."""

    def must_finish(self, due_in_s: float) -> bool:
        """Whether a peer that is to stand still finishes this exchange, which begins in so many seconds. Not where it
        has promised nothing, and not where the others still have time to do without it."""

    def late_result(self, work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
        """Return the result of an exchange that was given up because the fragment is due again."""
