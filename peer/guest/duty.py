"""Limits how much of the time the trainer works, by pauses between steps and between the parts of a long step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from peer.guest.priority import lower_priority

SHORTEST_REST_S = 0.1
"""Pauses shorter than this are postponed to the end of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerShares:
    """The shares of the machine that the volunteer allows the trainer."""

    speed: float = 1.0
    """Share of the time in which the trainer works, in (0, 1]."""
    gpu: float = 1.0
    """Share of the GPU's time, in (0, 1]."""
    cores: float | None = None
    """Processor seconds per second; None: as many as the threads can use."""
    threads: int = 1
    step_seconds: float = 0.0
    """Shortest time of an inner step, including the pause after it."""
    low_priority: bool = False


class DutyCycle:
    """Computes the pauses that keep the trainer within its shares. `used` returns the processor seconds of this
    process.

    The count begins at the end of each pause and includes all processor time of the process, also that of
    evaluations."""

    def __init__(self, shares: TrainerShares, *, on_gpu: bool, used: Callable[[], float] = time.process_time) -> None:
        self._speed = shares.speed * (shares.gpu if on_gpu else 1.0)
        self._step_seconds = shares.step_seconds
        self._cores = shares.cores
        self._threads = shares.threads
        self._used = used
        self._busy_cores = 0.0
        self._low = shares.low_priority
        self.reasons = _reasons(shares, on_gpu=on_gpu)
        """The measures in force, each a sentence for the machine's owner."""
        self.rested()

    def begin(self) -> None:
        """Start counting, and lower the priority if wanted. Called when all modules are loaded and training begins."""
        if self._low:
            self.reasons.insert(0, lower_priority())
        self.rested()

    def rested(self) -> None:
        """Restart the count at the end of a pause."""
        self._since, self._used_before = time.monotonic(), self._used()

    def period(self, worked_s: float) -> float:
        """Return the expected seconds from the start of one step to the next, for a step of `worked_s` seconds."""
        by_cores = 0.0 if self._cores is None else worked_s * self._busy_cores / self._cores
        return max(worked_s / self._speed, self._step_seconds, by_cores)

    def rest_s(self, worked_s: float) -> float:
        """Return the seconds to pause after a step of `worked_s` seconds."""
        if self._cores is not None and worked_s > 0:
            self._busy_cores = min(float(self._threads), (self._used() - self._used_before) / worked_s)
        return max(worked_s / self._speed - worked_s, self._step_seconds - worked_s, self._owed_s())

    def rest_if_due(self) -> None:
        """Pause between two parts of a step, if the processor share was exceeded."""
        if (owed_s := self._owed_s()) >= SHORTEST_REST_S:
            time.sleep(owed_s)  # blocks this thread; the daemon's requests are served at the end of the step anyway
            self.rested()

    def resting_before(self, ask: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that pauses if due and then returns `ask()`."""

        def asked() -> bool:
            self.rest_if_due()
            return ask()

        return asked

    def _owed_s(self) -> float:
        """Return the length of the pause that would bring the processor time used down to its share."""
        if self._cores is None:
            return 0.0
        return max(0.0, (self._used() - self._used_before) / self._cores - (time.monotonic() - self._since))


def _reasons(shares: TrainerShares, *, on_gpu: bool) -> list[str]:
    found = []
    if shares.cores is not None:
        found.append(f"at most {shares.cores:.3g} processor cores on average: --cpu")
    if shares.gpu < 1:
        found.append(
            f"at most {shares.gpu:.0%} of the GPU's time: --gpu" if on_gpu else "--gpu changes nothing: no GPU is used"
        )
    return found
