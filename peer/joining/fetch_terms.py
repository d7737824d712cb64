"""The requirements that a fetched state must meet, and facts about the run that limit what donors may claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from peer.observe.events import Event
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.policy.donors import PATIENCE_S, SignedDigest, StateLosses

Weigh = Callable[[Tensor, int, float], Awaitable[StateLosses | str]]
"""Measures the losses of a state. See `peer.ports.trainer.Trainer.weigh`."""


def ignore_event(event: Event) -> None:
    """Drop an event. For peers without a journal."""


async def no_start(donors: Sequence[PeerRecord]) -> None:
    """Do nothing. The default of `RunKnowledge.ask_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """Facts about the run from other sources than donors, which bound what donors may claim."""

    proven: frozenset[PeerId] = frozenset()
    """Proven peers, whose claims take precedence."""
    nodes: frozenset[PeerId] = frozenset()
    """The operator's nodes, which are always among the donors asked."""
    furthest: Callable[[], int | None] = lambda: None
    """Returns the latest round that any peer can be in. None: not known."""
    digests: Callable[[], Sequence[SignedDigest]] = tuple
    """Returns the signed digests of states, newest round first."""
    ask_start: Callable[[Sequence[PeerRecord]], Awaitable[None]] = no_start
    """Asks donors for the run's signed start while it is unknown. A donor that is past round 0 has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTerms:
    """The requirements of one fetch of a state."""

    momentum: bool = False
    """Whether the state includes outer_momentum, as a group's does."""
    patience_s: float = PATIENCE_S
    fresh: bool = False
    """Fetch the donors' present state, not a recent copy."""
    weigh: Weigh | None = None
    """Has the trainer measure a state's losses. None: states are accepted unmeasured."""
    emit: Callable[[Event], None] = ignore_event
    """Receives events for the journal."""
    knowledge: RunKnowledge = RunKnowledge()
