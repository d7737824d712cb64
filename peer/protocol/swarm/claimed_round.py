"""The round that the swarm is in, from the rounds that others name. Anybody may name any round, so a single word moves
nothing: the lower median counts, of proven peers where there are enough, and never more than time allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from peer.protocol.messages import PeerId
from peer.protocol.pair.proven import LEAST
from peer.protocol.round_lengths import round_of
from peer.protocol.schedule import RoundClock, lower_median

SHORTEST_STEP_S = 1e-3
"""No machine takes an inner step in less: forward pass, backward pass and the optimizer's step."""
AHEAD = 1
"""Rounds that somebody may be ahead of the round clock, for clocks differ."""


def furthest_round(clock: RoundClock, now: float) -> int | None:
    """Return the furthest round that anybody can be in at `now`, run time. None: nobody said when the run began.

    In seconds it is the round after the one that is under way. In inner steps it is what the fastest machine would
    have reached since the start."""
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
    """Return the lower median of the rounds that peers name and of our `own`; None when there is none.

    It is at most `most`. Only `proven` peers count beside us once `LEAST` of them are among these: fewer would let one
    peer decide."""
    trusted = [rounds[peer] for peer in proven if peer in rounds]
    counted = trusted if len(trusted) >= LEAST else list(rounds.values())
    median = lower_median(counted if own is None else [*counted, own])
    return median if median is None or most is None else min(median, most)
