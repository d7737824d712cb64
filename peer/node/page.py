"""The interface between a daemon and its HTTP servers (`peer.web`): the data they are given, and for how long they
run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peer.node.control import Handler
from peer.node.metrics import DaemonMetrics
from peer.observe.journal import Journal, Listener
from peer.observe.status.value import DaemonStatus
from peer.ports.console import Say


def _nothing_measured() -> Sequence[tuple[int, float, float]]:
    return ()


def _no_journal(listener: Listener) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """The data and actions of the pages. All calls are quick, and are made on the event loop."""

    home: Path
    """Folder of the page's access token."""
    report: Callable[[], DaemonStatus]
    """Returns the daemon's status."""
    metrics: DaemonMetrics | None = None
    """None: the metrics page does not exist."""
    control: Handler | None = None
    """The handler of the control socket. None: the page offers no actions."""
    evaluations: Callable[[], Sequence[tuple[int, float, float]]] = _nothing_measured
    """Returns (round, nats per token, bits per byte) of each evaluation so far."""
    listen: Callable[[Listener], None] = _no_journal
    """Adds a listener to the journal."""

    @classmethod
    def of_peer(
        cls, home: Path, report: Callable[[], DaemonStatus], metrics: DaemonMetrics, control: Handler, journal: Journal
    ) -> PageSource:
        """Return the source for the pages of a volunteer's daemon."""
        return cls(
            home=home,
            report=report,
            metrics=metrics,
            control=control,
            evaluations=lambda: journal.totals.val_loss,
            listen=journal.listeners.append,
        )


class DaemonPage(Protocol):
    """An HTTP server of a daemon."""

    def opened(self, source: PageSource, say: Say) -> AbstractAsyncContextManager[str]:
        """Serve within the context, whose value is the page's address. Closing takes seconds at most, whatever clients
        do."""


@dataclass(frozen=True, slots=True)
class DaemonPages:
    """The HTTP servers that the user asked for. None: not wanted."""

    web: DaemonPage | None = None
    """The page for browsers."""
    metrics: DaemonPage | None = None
    """The page for Prometheus."""
    trackers: tuple[DaemonPage, ...] = ()
    """Exporters to experiment trackers."""

    @contextlib.asynccontextmanager
    async def opened(
        self, source: PageSource, say: Say, told: Callable[[str], None] = lambda address: None
    ) -> AsyncIterator[None]:
        """Run all servers within the context. `told`: called with the address of the page for browsers."""
        async with contextlib.AsyncExitStack() as stack:
            if self.metrics is not None:
                await stack.enter_async_context(self.metrics.opened(source, say))
            for tracker in self.trackers:
                await stack.enter_async_context(tracker.opened(source, say))
            if self.web is not None:
                told(await stack.enter_async_context(self.web.opened(source, say)))
            yield


NO_PAGES = DaemonPages()
