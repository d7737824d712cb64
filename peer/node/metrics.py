"""The facts behind a daemon's metrics. `peer.web.metrics` serves them."""

from __future__ import annotations

import asyncio
import math
import os
import platform
from collections.abc import Callable
from typing import Any

from peer import __version__
from peer.observe.counters import EventCounters
from peer.observe.process_stats import open_files, resident_bytes
from peer.observe.status.codec import to_json
from peer.observe.status.value import DaemonStatus
from peer.observe.totals import Totals

LAG_TICK_S = 0.25
RENDER_EVERY_S = 1.0

Report = Callable[[], DaemonStatus]


class LoopLag:
    """How late the event loop runs a timer, measured four times a second."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._due = 0.0

    async def run(self) -> None:
        """For ever; the owner cancels."""
        now = asyncio.get_running_loop().time
        while True:
            self._due = now() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self._worst = max(self._worst, now() - self._due)

    def read_and_reset(self) -> float:
        """Seconds, the most since this was last asked."""
        worst, self._worst = self._worst, 0.0
        return max(worst, asyncio.get_running_loop().time() - self._due if self._due else 0.0)


class DaemonMetrics:
    """A daemon's metrics, as text for Prometheus or as the data behind it.

    `report`: returns the daemon's status. `totals`, `event_counters` and `now` (the journal's clock) are given if the
    daemon has a journal."""

    def __init__(
        self,
        report: Report,
        totals: Callable[[], Totals] | None = None,
        event_counters: EventCounters | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._report, self._totals, self._event_counters, self._now = report, totals, event_counters, now
        self.lag = LoopLag()
        """Its `run` is to be awaited as long as somebody may ask."""
        self._rendered_at, self._text = -math.inf, b""

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them, made anew at most once a second, however many ask."""
        from peer.observe.exposition import exposition  # only who asks for metrics loads the library

        now = asyncio.get_running_loop().time()
        if now - self._rendered_at >= RENDER_EVERY_S:
            facts = self.facts()
            self._rendered_at, self._text = now, exposition(facts, facts["status"]["role"])
        return self._text

    def facts(self) -> dict[str, Any]:
        """What `peer.observe.exposition` makes metrics of."""
        from peer.observe.exposition import status_facts, totals_facts

        report = self._report()
        facts = {
            "status": to_json(report),
            "seen": status_facts(report),
            "proc": _processes(report),
            "loop": {"lag_s": self.lag.read_and_reset()},
            "build": _build(),
        }
        if self._totals is not None:
            facts["sums"] = totals_facts(self._totals())
        if self._event_counters is not None:
            facts["counted"] = self._event_counters.report(self._now())
        return facts


def _processes(status: DaemonStatus) -> dict[str, dict[str, int]]:
    """What each process holds; one that is gone, or of which nothing is told, is left out."""
    pids = {
        "daemon": os.getpid(),
        "trainer": None if status.training is None else status.training.trainer_pid,
        "p2pd": status.directory.pid,
    }
    held = {
        name: {"resident_bytes": resident_bytes(pid), "open_files": open_files(pid)}
        for name, pid in pids.items()
        if pid
    }
    return {name: {what: n for what, n in of.items() if n} for name, of in held.items()}


def _build() -> dict[str, str]:
    import torch

    return {"version": __version__, "python": platform.python_version(), "torch": torch.__version__}
