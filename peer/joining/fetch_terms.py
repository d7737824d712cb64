"""What a peer asks of the state that it fetches, and whom it believes about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from peer.observe.events import Event
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.policy.donors import PATIENCE_S, SignedDigest, StateLosses

Weigh = Callable[[Tensor, int, float], Awaitable[StateLosses | str]]
"""As `peer.ports.trainer.Trainer.weigh`."""


def ignore_event(event: Event) -> None:
    """Take an event that nobody keeps."""


async def no_start(donors: Sequence[PeerRecord]) -> None:
    """Ask nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """What a peer knows about the run besides what donors say, and bounds that by."""

    proven: frozenset[PeerId] = frozenset()
    """The peers that are proven to us: what they say counts first."""
    nodes: frozenset[PeerId] = frozenset()
    """The operator's, which are asked in any crowd."""
    furthest: Callable[[], int | None] = lambda: None
    """Returns the furthest round that anybody can be in; None: nobody knows."""
    digests: Callable[[], Sequence[SignedDigest]] = tuple
    """Returns the signed digests of states, the newest round first."""
    ask_start: Callable[[Sequence[PeerRecord]], Awaitable[None]] = no_start
    """Asks donors for the run's signed start, as long as it is unknown: who is past round 0 holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTerms:
    """The terms of one fetch."""

    momentum: bool = False
    """A group's state has it, too."""
    patience_s: float = PATIENCE_S
    fresh: bool = False
    """Take the state that donors have now, not a copy from a moment ago."""
    weigh: Weigh | None = None
    """Has the trainer judge a state. None: states are taken as they come."""
    emit: Callable[[Event], None] = ignore_event
    """Takes events for the journal."""
    knowledge: RunKnowledge = RunKnowledge()
