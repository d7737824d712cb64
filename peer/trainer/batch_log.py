"""Log of the batches that were trained on, one line each, to check that none is repeated or left out.

It is off by default, for it grows with every step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from peer.protocol.data_span import cursor_text, parse_cursor
from peer.protocol.sampling import Cursor
from peer.trainer.batches import Batch, Windows
from peer.whole_files import write_all

TRAIL = "trail.log"
MAX_LINE = 200


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One inner step."""

    process: int
    """Process id of the trainer."""
    tokens: int
    """Token counter at the start of the step."""
    round: int
    step: int
    """Step in the round."""
    batch: str
    """Digest of the windows, in hex."""
    begin: Cursor
    """Place of the batch in the data."""
    end: Cursor
    """Place of the next batch."""


def digest_of(windows: Windows) -> str:
    """Return the BLAKE3 of the windows' bytes, 16 hex digits."""
    return blake3(windows.tobytes()).hexdigest(8)


class BatchLog:
    """Appends to `trail.log` in the folder. A line is one write, so a SIGKILL loses none."""

    def __init__(self, folder: Path) -> None:
        """Open the log. Raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(folder / TRAIL, flags, 0o600)

    def step(self, tokens: int, round_: int, step: int, batch: Batch) -> None:
        """Log a step that is about to be made. Raises OSError."""
        span = f"{cursor_text(batch.begin)} {cursor_text(batch.end)}"
        write_all(self._fd, f"{os.getpid()} {tokens} {round_} {step} {digest_of(batch.windows)} {span}\n".encode())


def read_batch_log(path: Path) -> Iterator[LoggedStep]:
    """Read the steps in the order in which they were made. Raises OSError, and ValueError for a foreign line."""
    with path.open() as file:
        while line := file.readline(MAX_LINE):
            process, tokens, round_, step, batch, begin, end = line.split()
            span = parse_cursor(begin), parse_cursor(end)
            yield LoggedStep(int(process), int(tokens), int(round_), int(step), batch, *span)
