"""The file by which a partner's params come to the trainer."""

from __future__ import annotations

from pathlib import Path


def probe_file(folder: Path, fragment: int) -> Path:
    """Return the file in which the daemon hands over a partner's params, little endian fp32. Our outer_params follow
    where the arena does not hold them. It is there for the time of the call."""
    return folder / f"probe-{fragment}.bin"
