"""Interface of the clock that the rounds use."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Run time: seconds since the epoch on the swarm's common clock. The local clock is corrected by the offsets that
    Hellos measure."""

    def now(self) -> float: ...

    @property
    def correction(self) -> float:
        """Difference between `now` and this machine's uncorrected clock, in seconds."""

    def raw(self, run_time: float) -> float:
        """Convert run time to `peer.clock.monotonic.boottime`, the clock of the trainer process."""

    async def sleep(self, seconds: float) -> None: ...

    def bound(self, seconds: float) -> None:
        """Limit the correction to this many seconds, whatever offsets are measured."""

    def observe(self, offset_s: float, voice: str = "") -> None:
        """Report an offset that a Hello measured: another peer's run clock minus our uncorrected clock, in seconds.
        `voice`: the network of the other peer (`Welcome.voice`); all peers of one network share one vote."""

    def forget_offsets(self) -> None:
        """Drop the measured offsets after a sleep of this machine."""
