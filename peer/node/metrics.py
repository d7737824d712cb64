"""Collects the data of a daemon's metrics. `peer.web.metrics` serves them."""

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
    """Measures how late the event loop runs timers, four times a second."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._due = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            self._due = now() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self._worst = max(self._worst, now() - self._due)

    def read_and_reset(self) -> float:
        """Return the largest delay since the last call, in seconds."""
        worst, self._worst = self._worst, 0.0
        return max(worst, asyncio.get_running_loop().time() - self._due if self._due else 0.0)


class DaemonMetrics:
    """The metrics of a daemon, as text for Prometheus or as data.

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
        """The server of the metrics runs its `run`."""
        self._rendered_at, self._text = -math.inf, b""

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format. They are computed at most once a second, however often they
        are requested."""
        from peer.observe.exposition import exposition  # loads the library on the first request only

        now = asyncio.get_running_loop().time()
        if now - self._rendered_at >= RENDER_EVERY_S:
            facts = self.facts()
            self._rendered_at, self._text = now, exposition(facts, facts["status"]["role"])
        return self._text

    def facts(self) -> dict[str, Any]:
        """Return the data from which `peer.observe.exposition` makes the metrics."""
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
    """Return memory and open files of each process. Processes that have ended, and unknown values, are left out."""
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
