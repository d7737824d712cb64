"""Tells journal and person what becomes of the directory's helper process."""

from __future__ import annotations

from collections.abc import Callable

from peer.discovery.dht_node.health import ordinal
from peer.observe import events


class DhtNodeEvents:
    """Implements `peer.discovery.dht_node.health.Watcher`."""

    def __init__(self, emit: Callable[[events.Event], None], say: Callable[[str], None]) -> None:
        self._emit = emit
        self._say = say

    def helper_ended(self, cause: str, times: int) -> None:
        self._emit(events.HelperEnded(cause=cause, times=times))
        again = f" ({ordinal(times)} time in a row)" if times > 1 else ""
        self._say(f"directory: {cause}; starting it again{again}, the others are still known")

    def helper_back(self, seconds: float, times: int) -> None:
        self._emit(events.HelperBack(seconds=round(seconds, 3), times=times))
        self._say(f"directory: back after {seconds:.1f} s")
