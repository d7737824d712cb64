"""Clocks that do not jump when the wall clock is set, the volunteer's quiet hours, and a timer of phases.

`RunClock` is the clock that rounds use. Begin with `peer.clock.monotonic`, on which it is built."""
