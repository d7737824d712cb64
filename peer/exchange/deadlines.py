"""How long a transfer may take, by what was measured."""

from __future__ import annotations

HEARTBEAT_S = 1.0


LEAST_S = 0.05
"""Between two looks at the pace of a payload."""


TRANSFER_SLACK_S = 5.0


TRANSFER_FACTOR = 4.0
"""A transfer may take this many times what the measured rate predicts, and the slack."""


START_S = 3.0
"""So long after the end of the round's window a locked partner may still send its first byte: it may have to end a
step, and to encode."""


ASSUMED_RATE = 250_000.0
"""Bytes per second assumed of a partner nothing was measured of."""


AWAY_S = 15.0
"""So long a partner that has begun to send may not answer, and nothing may come: the transport goes on with it when it
is back. Longer than the transport lets one who has everything wait (`peer.transport.wire.resumption.LINGER_S`): what is
complete is not given up here."""
