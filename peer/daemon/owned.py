"""Tasks that end with the block that began them, and work that ends whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def owned(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Runs beside the block; cancelled and awaited at its end. What it raised is raised there, unless the block did."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def whole(call: Awaitable[T]) -> T:
    """Run to the end even when cancelled meanwhile; the cancellation comes after."""
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def before(told: asyncio.Future[Any], call: Awaitable[T]) -> T | None:
    """As `unless`, for a future."""
    running = asyncio.ensure_future(call)
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        running.cancel()
        await asyncio.wait({running})


async def unless(event: asyncio.Event, call: Awaitable[T]) -> T | None:
    """The call's result, or None when the event came first; then the call is cancelled."""
    running = asyncio.ensure_future(call)
    told = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        for task in (running, told):
            task.cancel()
        await asyncio.wait({running, told})
