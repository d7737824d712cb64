"""The metrics endpoint of a daemon: `/metrics` for Prometheus and `/healthz` for liveness checks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from peer.aio.tasks import background_task
from peer.node.metrics import DaemonMetrics
from peer.node.page import PageSource
from peer.ports.console import Say
from peer.web.address import BoundSocket

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp


class MetricsPage:
    """The HTTP server of a daemon's metrics.

    `bound`: the listening socket. `names`: further host names that requests may be addressed to."""

    def __init__(self, bound: BoundSocket, names: tuple[str, ...] = ()) -> None:
        self._bound = bound
        self._names = frozenset(name.lower() for name in (bound.address.host, *names))

    @contextlib.asynccontextmanager
    async def opened(self, source: PageSource, say: Say) -> AsyncIterator[str]:
        """Serve within the context, which yields the URL of the metrics."""
        from peer.web.server import serving_app

        assert source.metrics is not None
        url = f"http://{self._bound.address}/metrics"
        say(f"metrics: {url}")
        app = metrics_app(source.metrics, self._names)
        async with serving_app(app, self._bound), background_task(source.metrics.lag.run()):
            yield url


def metrics_app(metrics: DaemonMetrics, names: frozenset[str]) -> ASGIApp:
    """Create the application. `names`: see `peer.web.guard`."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from peer.observe.exposition import CONTENT_TYPE
    from peer.web.guard import Guard

    async def metrics_text(request: Request) -> Response:
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def lives(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Guard(Starlette(routes=[Route("/metrics", metrics_text), Route("/healthz", lives)]), names)
