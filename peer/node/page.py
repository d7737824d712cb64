"""The seam between a daemon and its page for browsers (`peer.web`): what the page is given, and how long it is open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from peer.node.control import Handler
from peer.observe.journal import Journal, Listener
from peer.ports.console import Say


def _nothing_measured() -> Sequence[tuple[int, float, float]]:
    return ()


def _no_journal(listener: Listener) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """What a page shows, and what it can do. The calls are quick, and are made on the event loop."""

    home: Path
    """Folder for the page's token."""
    report: Callable[[], dict[str, Any]]
    """Returns what `peer status` tells."""
    act: Handler | None = None
    """The control socket's own handler. None: nothing can be done from the page."""
    evaluations: Callable[[], Sequence[tuple[int, float, float]]] = _nothing_measured
    """Returns round, nats a token and bits per byte of the evaluations so far."""
    listen: Callable[[Listener], None] = _no_journal
    """Adds a listener to the journal."""

    @classmethod
    def of_peer(cls, home: Path, report: Callable[[], dict[str, Any]], act: Handler, journal: Journal) -> PageSource:
        """Return what a volunteer's page is made of."""
        return cls(
            home=home,
            report=report,
            act=act,
            evaluations=lambda: journal.totals.val_loss,
            listen=journal.listeners.append,
        )


class DaemonPage(Protocol):
    """A page that a daemon keeps open."""

    def opened(self, source: PageSource, say: Say) -> AbstractAsyncContextManager[str]:
        """Serve within the context; the page's address. It ends within seconds, whoever looks at it."""


def _untold(address: str) -> None: ...


@contextlib.asynccontextmanager
async def paged(
    page: DaemonPage | None, source: PageSource, say: Say, told: Callable[[str], None] = _untold
) -> AsyncIterator[None]:
    """The page is open within the context, if one is wanted; `told` is given its address."""
    if page is None:
        yield
        return
    async with page.opened(source, say) as address:
        told(address)
        yield
