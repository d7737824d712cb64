"""Estimate of the swarm's round from the rounds that peers claim. Anybody may claim any round, so a single claim
changes nothing: the lower median counts, of proven peers if there are enough, and at most the round that is possible by
time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from peer.protocol.messages import PeerId
from peer.protocol.pair.proven import LEAST
from peer.protocol.round_lengths import round_of
from peer.protocol.schedule import RoundClock, lower_median

SHORTEST_STEP_S = 1e-3
"""No machine takes an inner step (forward pass, backward pass, optimizer) in less time."""
AHEAD = 1
"""Rounds by which a peer may be ahead of the round clock, because clocks differ."""


def furthest_round(clock: RoundClock, now: float) -> int | None:
    """Return the furthest round in which any peer can be at `now` (run time). None: the start of the run is not known.

    With a clock in seconds, it is the round after the present one; in inner steps, what the fastest machine would have
    reached since the start."""
    if not clock.start:
        return None
    slot_s = clock.round_length * (1.0 if clock.kind == "seconds" else SHORTEST_STEP_S)
    return round_of(clock.growth, math.floor(max(0.0, now - clock.start) / slot_s)) + AHEAD


def claimed_round(
    rounds: Mapping[PeerId, int],
    proven: Iterable[PeerId] = (),
    *,
    own: int | None = None,
    most: int | None = None,
) -> int | None:
    """Return the lower median of the claimed rounds and of our `own`; None: there are none.

    The result is at most `most`. If `LEAST` or more of the `proven` peers claim a round, only their claims and `own`
    count. With fewer of them, one peer alone could decide."""
    trusted = [rounds[peer] for peer in proven if peer in rounds]
    counted = trusted if len(trusted) >= LEAST else list(rounds.values())
    median = lower_median(counted if own is None else [*counted, own])
    return median if median is None or most is None else min(median, most)
