"""Time limits of transfers, computed from measured rates."""

from __future__ import annotations

HEARTBEAT_S = 1.0
"""Seconds between two calls to a locked partner to check that it is alive."""

RELAYED_HEARTBEAT_S = 5.0
"""As `HEARTBEAT_S`, for a swap over a relay: such swaps last long, and each call takes bandwidth of the relay."""

LEAST_S = 0.05
"""Least seconds between two checks of a payload's pace."""

TRANSFER_SLACK_S = 5.0
"""Seconds that any transfer may take in addition to the time for its bytes."""

TRANSFER_FACTOR = 4.0
"""A transfer may take this many times the seconds that the measured rate predicts."""

START_S = 3.0
"""Seconds after the end of the round's window in which a locked partner may still send its first byte, because it may
have to finish an inner step and encode its params."""

ASSUMED_RATE = 250_000.0
"""Bytes per second assumed of a peer without measurements: 2 Mbit/s, a slow home uplink."""

RELAYED_PART = 1 / 8
"""Fraction of `ASSUMED_RATE` assumed for a swap over a relay: half of the 64 kB/s that every relay offers, because the
partner's payload takes the other half. Since a transfer may last `TRANSFER_FACTOR` times as long as predicted, four
swaps can share such a relay."""

LONGEST_PART = 3 / 4
"""A swap over a relay may take at most this part of the time between two exchanges of a fragment. A slower one would be
too slow in every round."""

AWAY_S = 15.0
"""Seconds for which a partner that has begun to send may stop answering and sending. The transport resumes the swap
when the partner is back. Longer than `peer.transport.wire.resumption.LINGER_S`, so that a complete payload is not given
up here."""


def transfer_s(nbytes: int, rate: float = ASSUMED_RATE) -> float:
    """Return the seconds that a transfer may take. `rate`: bytes per second."""
    return TRANSFER_SLACK_S + TRANSFER_FACTOR * nbytes / rate
