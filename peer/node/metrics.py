"""The metrics endpoint of a daemon: gathers the facts and serves them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Callable
from typing import Any

from peer import __version__
from peer.observe.counters import EventCounters
from peer.observe.http_server import HttpServer, Page
from peer.observe.process_stats import open_files, resident_bytes
from peer.observe.totals import Totals
from peer.protocol.endpoints import join_host
from peer.run.options import NodeOptions

LAG_TICK_S = 0.25

Report = Callable[[], dict[str, Any]]


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

    def take(self) -> float:
        """Seconds, the most since this was last asked."""
        worst, self._worst = self._worst, 0.0
        return max(worst, asyncio.get_running_loop().time() - self._due if self._due else 0.0)


class MetricsEndpoint:
    """`report`: the status report. `totals`, `tally` and `now` (the journal's clock): of a daemon with a journal."""

    def __init__(
        self,
        report: Report,
        totals: Callable[[], Totals] | None = None,
        tally: EventCounters | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._report, self._totals, self._tally, self._now = report, totals, tally, now
        self._lag = LoopLag()
        self._measuring: asyncio.Task[None] | None = None
        self._server = HttpServer({"/metrics": self._metrics, "/healthz": lambda: Page(b"ok\n")})

    async def start(self, host: str, port: int) -> str:
        """Listen; the address of the page. Raises AddressError."""
        bound = await self._server.start(host, port, "--metrics-port")
        self._measuring = asyncio.create_task(self._lag.run(), name="loop-lag")
        return f"http://{join_host(host, bound)}/metrics"

    async def close(self) -> None:
        await self._server.close()
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait({self._measuring})

    def _metrics(self) -> Page:
        from peer.observe.exposition import CONTENT_TYPE, exposition  # only who asks for metrics loads the library

        facts = self.facts()
        return Page(exposition(facts, facts["status"]["role"]), CONTENT_TYPE)

    def facts(self) -> dict[str, Any]:
        """What `peer.observe.exposition` makes metrics of."""
        from peer.observe.exposition import seen, sums

        report = self._report()
        facts = {
            "status": report,
            "seen": seen(report),
            "proc": _processes(report),
            "loop": {"lag_s": self._lag.take()},
            "build": _build(),
        }
        if self._totals is not None:
            facts["sums"] = sums(self._totals())
        if self._tally is not None:
            facts["counted"] = self._tally.report(self._now())
        return facts


@contextlib.asynccontextmanager
async def serving(endpoint: MetricsEndpoint, options: NodeOptions, say: Callable[[str], None]) -> AsyncIterator[None]:
    """The endpoint is open within the context, if it is wanted at all. Raises AddressError."""
    if options.metrics_port is None:
        yield
        return
    try:
        say(f"metrics: {await endpoint.start(options.metrics_host, options.metrics_port)}")
        yield
    finally:
        await endpoint.close()


def _processes(report: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What each process holds; one that is gone, or of which nothing is told, is left out."""
    pids = {
        "daemon": os.getpid(),
        "trainer": report.get("trainer_pid"),
        "p2pd": report.get("directory", {}).get("pid"),
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
