"""Names that daemon and trainer share for probes: the file with the partner's params, and one answer."""

from __future__ import annotations

from pathlib import Path

AWAITED = "the hold-out is on its way"
"""Answer to `weigh` while the hold-out is being fetched, upon which the daemon tries again."""


def probe_file(folder: Path, fragment: int) -> Path:
    """Return the path of the file in which the daemon passes a partner's params of a fragment to the trainer.

    It holds little-endian fp32 and exists only during the call. The own outer_params follow the partner's params unless
    they lie in the arena."""
    return folder / f"probe-{fragment}.bin"
