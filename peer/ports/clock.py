"""The clock that the rounds read."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Run time: seconds since the epoch on the swarm's common clock (corrected by what was measured at Hello)."""

    def now(self) -> float: ...

    @property
    def correction(self) -> float:
        """What `now` differs from this machine's uncorrected clock, seconds."""

    def raw(self, run_time: float) -> float:
        """The same moment on the clock that the trainer, a process of its own, reads: `peer.clock.monotonic.steady`."""

    async def sleep(self, seconds: float) -> None: ...

    def bound(self, seconds: float) -> None:
        """Differ from this machine's uncorrected clock by no more than this, whatever is measured."""

    def observe(self, offset_s: float, voice: str = "") -> None:
        """A Hello measured another peer's run clock minus our uncorrected one. Feeds the correction. `voice`: the
        network that the other speaks for (`Welcome.voice`)."""

    def forget_offsets(self) -> None:
        """After a sleep: the offsets measured so far count no more."""
