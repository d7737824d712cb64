"""A daemon's web page, served while the daemon runs. The web libraries are imported only when the page opens."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from peer.aio.tasks import cancel_and_wait
from peer.node.page import PageSource
from peer.ports.console import Say
from peer.web import token
from peer.web.address import BoundSocket


class WebPage:
    """The HTTP server of a daemon's web page.

    `bound`: the listening socket. `names`: further host names that browsers may address."""

    def __init__(self, bound: BoundSocket, names: tuple[str, ...] = ()) -> None:
        self._bound = bound
        self._names = frozenset(name.lower() for name in (bound.address.host, *names))

    @contextlib.asynccontextmanager
    async def opened(self, source: PageSource, say: Say) -> AsyncIterator[str]:
        """Serve within the context, which yields the page's URL. Raises HomeUnusable when the token file is
        unusable."""
        from peer.web.app import Actions, page_app
        from peer.web.broadcast import Broadcast
        from peer.web.public import PublicAccount
        from peer.web.server import serving_app
        from peer.web.volunteer import VolunteerAccount

        actions = None if source.control is None else Actions(source.control, token.load_or_create(source.home))
        account = PublicAccount(source) if actions is None else VolunteerAccount(source)
        broadcast = Broadcast(account, asyncio.get_running_loop().time)
        index = "run.html" if actions is None else "volunteer.html"
        url = f"http://{self._bound.address}/"
        say(_announcement(url, source.home, "" if actions is None else actions.token))
        if actions is not None and not self._bound.address.local:
            say("page: others reach it too. They can read it, and the token goes there without encryption")
        async with serving_app(page_app(index, broadcast, actions, self._names), self._bound, broadcast.close):
            pulse = asyncio.create_task(broadcast.run(), name="page-pulse")
            pulse.add_done_callback(_report_defect)
            try:
                yield url
            finally:
                await cancel_and_wait(pulse)


def _announcement(url: str, home: Path, secret: str) -> str:
    """Return the line that announces the page. It contains the token only on a terminal, because logs are kept."""
    if not secret:
        return f"page: {url}"
    if sys.stdout.isatty():
        return f"page: {url}#token={secret}"
    return f"page: {url} (add #token= and what is in {home / token.FILE} to pause and leave there)"


def _report_defect(task: asyncio.Task[None]) -> None:
    """Report an error of the page to the loop's exception handler. Training continues without the page."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the page's account failed", "exception": error})
