"""The seam between a daemon and its HTTP servers (`peer.web`): what they are given, and how long they are open."""

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
    """What the pages show, and what they can do. The calls are quick, and are made on the event loop."""

    home: Path
    """Folder for the page's token."""
    report: Callable[[], DaemonStatus]
    """Returns the status."""
    metrics: DaemonMetrics | None = None
    """None: there is no page of metrics."""
    control: Handler | None = None
    """The control socket's own handler. None: nothing can be done from the page."""
    evaluations: Callable[[], Sequence[tuple[int, float, float]]] = _nothing_measured
    """Returns round, nats a token and bits per byte of the evaluations so far."""
    listen: Callable[[Listener], None] = _no_journal
    """Adds a listener to the journal."""

    @classmethod
    def of_peer(
        cls, home: Path, report: Callable[[], DaemonStatus], metrics: DaemonMetrics, control: Handler, journal: Journal
    ) -> PageSource:
        """Build the source of the pages of a volunteer's daemon."""
        return cls(
            home=home,
            report=report,
            metrics=metrics,
            control=control,
            evaluations=lambda: journal.totals.val_loss,
            listen=journal.listeners.append,
        )


class DaemonPage(Protocol):
    """A page that a daemon keeps open."""

    def opened(self, source: PageSource, say: Say) -> AbstractAsyncContextManager[str]:
        """Serve within the context; the page's address. It ends within seconds, whoever looks at it."""


@dataclass(frozen=True, slots=True)
class DaemonPages:
    """The HTTP servers of a daemon: those that are wanted."""

    web: DaemonPage | None = None
    """For browsers."""
    metrics: DaemonPage | None = None
    """For Prometheus."""
    trackers: tuple[DaemonPage, ...] = ()
    """For experiment trackers."""

    @contextlib.asynccontextmanager
    async def opened(
        self, source: PageSource, say: Say, told: Callable[[str], None] = lambda address: None
    ) -> AsyncIterator[None]:
        """Serve them within the context. `told` is given the address of the page for browsers."""
        async with contextlib.AsyncExitStack() as stack:
            if self.metrics is not None:
                await stack.enter_async_context(self.metrics.opened(source, say))
            for tracker in self.trackers:
                await stack.enter_async_context(tracker.opened(source, say))
            if self.web is not None:
                told(await stack.enter_async_context(self.web.opened(source, say)))
            yield


NO_PAGES = DaemonPages()
