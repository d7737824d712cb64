"""Tasks that end together with the block that started them, and calls that cancellation does not interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background_task(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` as a task beside the block. Cancel and await the task when the block ends.

    When the block ends without an exception, an exception of the task is raised."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel_and_wait(task)
    if not task.cancelled():
        task.result()


async def uninterrupted(call: Awaitable[T]) -> T:
    """Run `call` to its end even when the caller is cancelled, and raise the cancellation afterwards."""
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def race(stop: asyncio.Future[Any], call: Awaitable[T]) -> T | None:
    """Return the result of `call`. If the future `stop` is done first, cancel `call` and return None."""
    running = asyncio.ensure_future(call)
    try:
        await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        await cancel_and_wait(running)


async def cancel_and_wait(running: asyncio.Future[Any]) -> None:
    """Cancel a future that is not done, and wait until it is. Its own exception is not raised."""
    if not running.done():
        running.cancel()
        await asyncio.wait({running})
    if not running.cancelled():
        running.exception()  # retrieve it: asyncio logs an exception that nobody retrieved
