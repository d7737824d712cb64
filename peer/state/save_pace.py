"""When a checkpoint is due, and how long one takes here: what a save may take is measured, and no constant alone."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from peer.observe.formatting import amount
from peer.state.checkpoint import TRAINER_SHARE
from peer.user_folders import make_private

SHARE = 0.02
"""Share of the time that writing checkpoints takes, at most. Large models therefore write them less often."""
LEAST_S = 8.0
"""A save may always take so long: a small machine may be busy with other things."""
FACTOR = 2.0
"""A save may take this many times what the measurements predict, and `LEAST_S`."""
TRIAL_PART = 20
TRIAL_BYTES = 64 * 2**20
"""Bytes of the trial write, at most; else one `TRIAL_PART`th of a checkpoint."""
UNKNOWN_STEP_S = 5.0
"""Seconds that a first inner step is taken for while none has ended."""
_CHUNK = 2**20


class SavePace:
    """Measured times of one run's checkpoints of `nbytes` each, `every_s` apart at least.

    `step_s` tells the longest of the trainer's last inner steps, in seconds; NaN: none has ended. The trainer saves at
    a step boundary."""

    def __init__(self, nbytes: int, every_s: float, step_s: Callable[[], float]) -> None:
        self._nbytes = nbytes
        self._every_s = every_s
        self._step_s = step_s
        self._due = 0.0  # the first one is due at the first boundary, so that a crash soon after it can resume
        self._byte_s: deque[float] = deque(maxlen=3)
        self._source = "nothing was written yet"

    # -- when ----------------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a checkpoint is due now."""
        return time.monotonic() >= self._due

    def record_start(self, at: float) -> None:
        """A checkpoint was begun at this moment of `time.monotonic`."""
        self._due = at + self._every_s

    def record_write(self, began: float, seconds: float, nbytes: int) -> None:
        """A checkpoint of `nbytes`, begun then, was complete after so many seconds."""
        self._due = began + max(self._every_s, seconds / SHARE)
        if self._source != "the last checkpoints":
            self._byte_s.clear()  # what a whole checkpoint takes is better than a trial
        self._source = "the last checkpoints"
        self._byte_s.append(seconds / max(1, nbytes))

    # -- how long ------------------------------------------------------------------------------------------------------

    def try_disk(self, folder: Path) -> None:
        """Write and sync a small part of a checkpoint in `folder`, and remove it again.

        A small checkpoint needs no trial. A disk that cannot be written to says so at the first checkpoint."""
        nbytes = min(TRIAL_BYTES, self._nbytes // TRIAL_PART) // _CHUNK * _CHUNK
        began = time.monotonic()
        try:
            make_private(folder)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                chunk = os.urandom(_CHUNK)
                for _ in range(nbytes // _CHUNK):
                    file.write(chunk)
                os.fsync(file.fileno())
        except OSError:
            return
        if nbytes and not self._byte_s:
            self._source = f"a trial of {amount(nbytes, 'bytes')}"
            self._byte_s.append((time.monotonic() - began) / nbytes)

    @property
    def boundary_s(self) -> float:
        """Seconds until the trainer's next step boundary, at most, by its last steps."""
        longest = self._step_s()
        return longest if longest >= 0 else UNKNOWN_STEP_S  # NaN is not

    @property
    def write_s(self) -> float:
        """Seconds that writing a checkpoint takes by the slowest of the last measurements; 0 without one."""
        return self._nbytes * max(self._byte_s, default=0.0)

    @property
    def write_s_source(self) -> str:
        """How `write_s` is known, for a person."""
        rate = 1 / max(self._byte_s) if self._byte_s and max(self._byte_s) > 0 else 0.0
        speed = f" at {amount(rate, 'bytes')}/s" if rate else ""
        return f"{amount(self._nbytes, 'bytes')}{speed}, by {self._source}"

    def trainer_limit_s(self) -> float:
        """Return the seconds that the trainer's part of a checkpoint may take."""
        return LEAST_S + FACTOR * (self.boundary_s + TRAINER_SHARE * self.write_s)

    def limit_s(self) -> float:
        """Return the seconds that completing a checkpoint may take."""
        return LEAST_S + FACTOR * self.write_s

    def timeout_reason(self, limit_s: float, written: int) -> str:
        """Why the trainer's part was given up after its limit, for a person. `written`: bytes of it on the disk."""
        parts = (
            f"its longest recent step took {self.boundary_s:.1f} s, writing takes {TRAINER_SHARE * self.write_s:.1f} s"
        )
        if not written:
            return f"the trainer did not answer within {limit_s:.0f} s: it is still in a step ({parts})"
        return f"the trainer did not answer within {limit_s:.0f} s: it had written {amount(written, 'bytes')} ({parts})"
