"""Tasks that end with the block that began them, and work that ends whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background_task(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Runs beside the block; cancelled and awaited at its end. What it raised is raised there, unless the block did."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel_and_wait(task)
    if not task.cancelled():
        task.result()


async def uninterrupted(call: Awaitable[T]) -> T:
    """Run to the end even when cancelled meanwhile; the cancellation comes after."""
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def race(told: asyncio.Future[Any], call: Awaitable[T]) -> T | None:
    """The call's result, or None when the future was done first; then the call is cancelled."""
    running = asyncio.ensure_future(call)
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        await cancel_and_wait(running)


async def cancel_and_wait(running: asyncio.Future[Any]) -> None:
    """Cancelled, unless it has ended, and awaited. What it raised is for those who ask it: it is not raised here."""
    if not running.done():
        running.cancel()
        await asyncio.wait({running})
    if not running.cancelled():
        running.exception()  # else asyncio says that nobody asked, of a call that ended just as it was given up
