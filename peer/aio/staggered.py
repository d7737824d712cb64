"""Attempts of which the first success counts, each begun a little after the one before (RFC 8305, section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from peer.aio.tasks import uninterrupted

T = TypeVar("T")
Attempt = Callable[[], Awaitable[T | None]]
"""Tries once. None: it failed."""
Discard = Callable[[T], Awaitable[None]]
"""Undoes what an attempt made."""


async def first_of(attempts: Sequence[Attempt[T]], stagger_s: float, discard: Discard[T]) -> T | None:
    """Return the first result. None: all attempts failed. The next attempt begins after `stagger_s`, or at once when
    one fails. Those under way are cancelled in the end. An attempt that was cancelled by others has failed.

    Raises what an attempt raises, once no other is under way. `discard` is given each result that is not returned, also
    when the caller is cancelled."""
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
    """Begin attempts until one has made something, or none is left. Return what the last of them raised that did.

    `started` keeps those under way, in order, and `made` what the others made."""
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
    """Cancel attempts, and discard what was made, by them all the same or before."""
    for task in started:
        task.cancel()
    ended = await asyncio.gather(*started, return_exceptions=True)
    started.clear()
    for result in [*made, *(one for one in ended if one is not None and not isinstance(one, BaseException))]:
        await discard(result)
