"""What daemon and trainer agree on for probes: the file by which a partner's params come, and an answer."""

from __future__ import annotations

from pathlib import Path

AWAITED = "the hold-out is on its way"
"""Why there are no windows to weigh a state by yet."""


def probe_file(folder: Path, fragment: int) -> Path:
    """Return the file in which the daemon hands over a partner's params, little endian fp32. Our outer_params follow
    where the arena does not hold them. It is there for the time of the call."""
    return folder / f"probe-{fragment}.bin"
