"""A log of the batches that were trained on, to check that none is repeated or left out.

It is off by default, because it grows by a line with every step."""

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
    """A line of the log, which is one inner step."""

    process: int
    """Process id of the trainer."""
    tokens: int
    """Token counter before the step."""
    round: int
    step: int
    """Number of the step within the round, from 0."""
    batch: str
    """Digest of the windows (`digest_of`)."""
    begin: Cursor
    """Place in the data where the batch begins."""
    end: Cursor
    """Place in the data where the next batch begins."""


def digest_of(windows: Windows) -> str:
    """Return the first 16 hex digits of the BLAKE3 digest of the windows' bytes."""
    return blake3(windows.tobytes()).hexdigest(8)


class BatchLog:
    """Appends steps to `trail.log` in a folder. Each line is one write, so that SIGKILL never loses a logged step."""

    def __init__(self, folder: Path) -> None:
        """Open the log for appending. Raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(folder / TRAIL, flags, 0o600)

    def step(self, tokens: int, round_: int, step: int, batch: Batch) -> None:
        """Log a step before it is made. `tokens`: the token counter before it. Raises OSError."""
        span = f"{cursor_text(batch.begin)} {cursor_text(batch.end)}"
        write_all(self._fd, f"{os.getpid()} {tokens} {round_} {step} {digest_of(batch.windows)} {span}\n".encode())


def read_batch_log(path: Path) -> Iterator[LoggedStep]:
    """Yield the logged steps in order. Raises OSError, and ValueError for a line that is not of this format."""
    with path.open() as file:
        while line := file.readline(MAX_LINE):
            process, tokens, round_, step, batch, begin, end = line.split()
            span = parse_cursor(begin), parse_cursor(end)
            yield LoggedStep(int(process), int(tokens), int(round_), int(step), batch, *span)
