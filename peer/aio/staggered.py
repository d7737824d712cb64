"""Staggered attempts: run alternatives one after another with a delay, and use the first success (RFC 8305, section
5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from peer.aio.tasks import uninterrupted

T = TypeVar("T")
Attempt = Callable[[], Awaitable[T | None]]
"""Try once. Return None if the attempt failed."""
Discard = Callable[[T], Awaitable[None]]
"""Release a result that is not used, for example close a connection."""


async def first_of(attempts: Sequence[Attempt[T]], stagger_s: float, discard: Discard[T]) -> T | None:
    """Run the attempts and return the first result. Return None if all attempts failed.

    The next attempt starts `stagger_s` seconds after the one before, or at once when one fails. When the first result
    is there, the other attempts are cancelled. An attempt that was cancelled by other code counts as failed. `discard`
    is called with each result that is not returned, also when the caller is cancelled.

    If no attempt returned a result and at least one raised, the exception of the last that raised is raised again."""
    started = list[asyncio.Task[T | None]]()
    made = list[T]()
    try:
        error = await _raced(attempts, stagger_s, started, made)
        losers, made[1:] = made[1:], []
        await uninterrupted(_end(started, losers, discard))
    except BaseException:
        await uninterrupted(_end(started, made, discard))
        raise
    if not made and error is not None:
        raise error
    return made[0] if made else None


async def _raced(
    attempts: Sequence[Attempt[T]], stagger_s: float, started: list[asyncio.Task[T | None]], made: list[T]
) -> BaseException | None:
    """Start attempts until one has a result or none is left. Return the exception of the last attempt that raised, or
    None.

    `started` holds the running attempts in order, and `made` collects the results of the finished ones."""
    waiting, error = list(attempts), None
    while (waiting or started) and not made:
        if waiting:
            started.append(asyncio.ensure_future(_run(waiting.pop(0))))
        done, _ = await asyncio.wait(
            started, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
        )
        for task in [task for task in started if task in done]:
            started.remove(task)
            if task.cancelled():
                continue
            error = task.exception() or error
            if task.exception() is None and (result := task.result()) is not None:
                made.append(result)
    return error


async def _run(attempt: Attempt[T]) -> T | None:
    return await attempt()


async def _end(started: list[asyncio.Task[T | None]], made: Collection[T], discard: Discard[T]) -> None:
    """Cancel the running attempts. Discard the results in `made`, and those of attempts that still return one."""
    for task in started:
        task.cancel()
    ended = await asyncio.gather(*started, return_exceptions=True)
    started.clear()
    for result in [*made, *(one for one in ended if one is not None and not isinstance(one, BaseException))]:
        await discard(result)
