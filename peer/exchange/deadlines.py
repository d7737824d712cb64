"""The times that a transfer may take, by the rates that were measured."""

from __future__ import annotations

HEARTBEAT_S = 1.0
"""Seconds between two questions to a locked partner whether it is there."""

RELAYED_HEARTBEAT_S = 5.0
"""As `HEARTBEAT_S`, over a relay. There swaps take long, and each question takes a part of what the relay passes on."""

LEAST_S = 0.05
"""Seconds between two looks at the pace of a payload, at least."""

TRANSFER_SLACK_S = 5.0
"""Seconds that a transfer may take beyond what its size accounts for."""

TRANSFER_FACTOR = 4.0
"""A transfer may take this many times what the rate predicts, and the slack."""

START_S = 3.0
"""Seconds after the end of the round's window in which a locked partner may still send its first byte: it may have to
end a step, and to encode."""

ASSUMED_RATE = 250_000.0
"""Bytes per second assumed of a peer that nothing was measured of: 2 Mbit/s, a slow home uplink."""

RELAYED_PART = 1 / 8
"""Part of `ASSUMED_RATE` that is assumed of a swap over a relay: half of the 64 kB/s that every relay offers, as the
other half goes the other way. With `TRANSFER_FACTOR` a relay of that size may carry four swaps at once."""

LONGEST_PART = 3 / 4
"""Part of the time between two exchanges of a fragment that a swap over a relay may take. What is slower than that is
too slow in every round."""

AWAY_S = 15.0
"""Seconds for which a partner that has begun to send may not answer, and nothing may come. The transport resumes the
swap when the partner is back. Longer than `peer.transport.wire.resumption.LINGER_S`: a complete payload is not given up
here."""


def transfer_s(nbytes: int, rate: float = ASSUMED_RATE) -> float:
    """Return the seconds that a transfer may take. `rate`: bytes per second."""
    return TRANSFER_SLACK_S + TRANSFER_FACTOR * nbytes / rate
