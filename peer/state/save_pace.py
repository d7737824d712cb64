"""When a checkpoint is due, and how long saving one may take, by measurements on this machine."""

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
"""Largest share of the time that may be spent writing checkpoints. Large models are therefore saved less often."""
LEAST_S = 8.0
"""Seconds that a save may take in any case, because the machine may be busy with other programs."""
FACTOR = 2.0
"""A save may take `LEAST_S` plus this many times the time that the measurements predict."""
TRIAL_PART = 20
TRIAL_BYTES = 64 * 2**20
"""The trial write has one `TRIAL_PART`th of a checkpoint's bytes, at most `TRIAL_BYTES`."""
UNKNOWN_STEP_S = 5.0
"""Assumed seconds of an inner step before the first one has ended."""
_CHUNK = 2**20


class SavePace:
    """Decides when a run's checkpoints are due, and predicts how long writing one takes.

    `nbytes`: of a checkpoint. `every_s`: least seconds between two. `step_s`: returns the seconds of the longest of the
    trainer's last inner steps (NaN: none has ended). A save may have to wait that long, because the trainer saves at a
    step boundary."""

    def __init__(self, nbytes: int, every_s: float, step_s: Callable[[], float]) -> None:
        self._nbytes = nbytes
        self._every_s = every_s
        self._step_s = step_s
        self._due = 0.0  # the first one is due at the first boundary, so that a crash soon after it can resume
        self._byte_s: deque[float] = deque(maxlen=3)
        self._source = "nothing was written yet"

    # -- when ----------------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Return whether a checkpoint is due now."""
        return time.monotonic() >= self._due

    def record_start(self, at: float) -> None:
        """Note that a checkpoint was begun at `at` (`time.monotonic`), whether or not it will be completed."""
        self._due = at + self._every_s

    def record_write(self, began: float, seconds: float, nbytes: int) -> None:
        """Note that a checkpoint of `nbytes`, begun at `began` (`time.monotonic`), was complete after `seconds`."""
        self._due = began + max(self._every_s, seconds / SHARE)
        if self._source != "the last checkpoints":
            self._byte_s.clear()  # the time of a whole checkpoint replaces that of the trial
        self._source = "the last checkpoints"
        self._byte_s.append(seconds / max(1, nbytes))

    # -- how long ------------------------------------------------------------------------------------------------------

    def try_disk(self, folder: Path) -> None:
        """Measure the disk by writing and syncing a small temporary file in `folder`.

        Does nothing for a small checkpoint. Ignores errors, which the first checkpoint will report."""
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
        """Expected most seconds until the trainer's next step boundary, from the duration of its last steps."""
        longest = self._step_s()
        return longest if longest >= 0 else UNKNOWN_STEP_S  # a comparison with NaN is False

    @property
    def write_s(self) -> float:
        """Predicted seconds to write a checkpoint, by the slowest of the last measurements. 0: nothing was measured."""
        return self._nbytes * max(self._byte_s, default=0.0)

    @property
    def write_s_source(self) -> str:
        """How `write_s` was determined, for a person."""
        rate = 1 / max(self._byte_s) if self._byte_s and max(self._byte_s) > 0 else 0.0
        speed = f" at {amount(rate, 'bytes')}/s" if rate else ""
        return f"{amount(self._nbytes, 'bytes')}{speed}, by {self._source}"

    def trainer_limit_s(self) -> float:
        """Return the most seconds that the trainer's part of a checkpoint may take."""
        return LEAST_S + FACTOR * (self.boundary_s + TRAINER_SHARE * self.write_s)

    def limit_s(self) -> float:
        """Return the most seconds that completing a checkpoint may take, after both parts are written."""
        return LEAST_S + FACTOR * self.write_s

    def timeout_reason(self, limit_s: float, written: int) -> str:
        """Return why the trainer's part was given up after `limit_s` seconds, for a person.

        `written`: bytes of it that are on the disk."""
        parts = (
            f"its longest recent step took {self.boundary_s:.1f} s, writing takes {TRAINER_SHARE * self.write_s:.1f} s"
        )
        if not written:
            return f"the trainer did not answer within {limit_s:.0f} s: it is still in a step ({parts})"
        return f"the trainer did not answer within {limit_s:.0f} s: it had written {amount(written, 'bytes')} ({parts})"
