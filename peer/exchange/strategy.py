"""The interface between the round loop and an exchange: `ExchangeStrategy` opens an `ExchangeSession` for each round,
which returns an `ExchangeResult`."""

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
    """The result of a round's exchange, before the outer step, which `peer.rounds.commit` takes."""

    outcome: Literal["exchanged", "solo", "refused", "carried"]
    """`carried`: no outer step is taken, and the work becomes part of the fragment's next round."""
    reason: str
    values: OuterValues = field(default_factory=NoStep)
    applied: int = 0
    """Work that enters the outer step, in tokens x elements; `dropped` has the same unit."""
    dropped: int = 0
    members: tuple[PeerId, ...] = ()
    """The peers that exchanged, this peer included."""
    report: SwapReport | None = None


@dataclass(frozen=True, slots=True)
class MissedState:
    """A later state of a fragment, fetched from the group because this peer does not have it. It is not applied yet."""

    state: GroupState
    donor: PeerId
    reason: str
    """Why this peer did not have the state, for the journal."""


@dataclass(frozen=True, slots=True)
class ExchangeControls:
    """What an exchange needs from the rest of the daemon: whether it may begin, and where it reports what it does."""

    wants_partners: Callable[[], bool]
    """Returns whether to look for partners; False while this peer leaves or pauses."""
    no_exchange_reason: Callable[[], str]
    """Returns why this peer may not exchange now, as text for a person; empty if it may."""
    set_activity: Callable[[str], None]
    """Called with what the exchange is doing, as text for `peer status`."""
    exchange_fits: Callable[[float], bool] = lambda ends_at: True
    """Returns whether an exchange that may last until the given run time ends before the next planned pause."""
    transfers: TransferMeter = field(default_factory=TransferMeter)
    """Progress of the transfers under way."""


class ExchangeStrategy(Protocol):
    """A topology: exchange with a random partner, with a group, or with no other peer."""

    @property
    def members(self) -> int:
        """Number of peers that take part in an exchange, as far as is known, this peer included."""

    @property
    def transfers(self) -> TransferMeter:
        """Progress of the transfers under way."""

    @property
    def shares_state(self) -> bool:
        """Whether all peers of the run end with the same state (groups)."""

    def start_at(self, round_: int) -> None:
        """Set this peer's first round. Called once, before the first `open_round`."""

    def reset(self) -> None:
        """Discard all knowledge of other peers' states. Called when the operator has replaced the run's state."""

    def open_round(
        self, key: RoundKey, opens_at: float, closes_at: float
    ) -> AbstractAsyncContextManager[ExchangeSession]:
        """Open a round. The search for other peers runs until the context is left. Times are run times in seconds."""

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> MissedState | None:
        """Fetch the group's state of a fragment, outside a round. Return None if it is the one this peer has.

        `at_last`: no round follows, so an earlier state is fetched too if more than half of the peers have it. Never
        raises for the failure of another peer."""

    def note_state(self, fragment: int, digest: bytes) -> None:
        """Record the digest of the fragment's present state, as returned by `OuterState.step_with`. Called after every
        change of the state."""


class ExchangeSession(Protocol):
    """An open round of one fragment."""

    def fetch_missed_state(self) -> Awaitable[MissedState | None] | None:
        """Fetch a state that the group has and this peer lacks, while the trainer works.

        Returns None, or an awaitable of None, if there is no such state. Never raises for the failure of another peer.
        Cancelling it leaves nothing running."""

    def exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float
    ) -> AbstractAsyncContextManager[ExchangeResult]:
        """Exchange `work` with the other peers; the context's value is the result.

        The tensors of the result lie in borrowed memory, so nothing may read them after the context is left.
        `closes_at`: run time until which a peer without a partner searches. Never raises for the failure of another
        peer. Cancelling it leaves nothing running."""

    def must_finish(self, due_in_s: float) -> bool:
        """Return whether a peer that is about to pause should still finish this exchange, which begins in `due_in_s`
        seconds. True only if a partner counts on it and has no time left to find another one."""

    def late_result(self, work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
        """Return the result for an exchange that was cancelled because its fragment is due again."""
