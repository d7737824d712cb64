"""What a daemon learns before it trains: the signed manifest, the operator's amendments, when the rounds began."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from peer.errors import ExchangeError
from peer.join.context import JoinContext
from peer.protocol.messages import PeerRecord
from peer.protocol.schedule import RoundClock
from peer.run.home import RunFolder, write_whole
from peer.run.manifest import Manifest
from peer.run.presets import resolve

HELLO_S = 5.0
GREETED, GREETED_S = 16, 1.0
"""Before training, so many peers are greeted at once for their clocks; who has not answered by then is waited for only
while nobody has."""


async def round_clock(context: JoinContext, manifest: Manifest) -> RoundClock:
    """The clock; in seconds its start comes from the manifest or from what others announce, and the own clock is
    corrected by a Hello to each of them first."""
    start = known_start(context, manifest)
    records = list((await context.directory.peers()).values())
    for offset in await _offsets(context, random.sample(records, min(GREETED, len(records)))):
        context.clock.observe(offset)  # after the last answer: a Hello under way would count a correction twice
    start = start or next((record.run_start for record in records if record.run_start), 0.0)
    return clock_from(manifest, start)


def clock_from(manifest: Manifest, start: float) -> RoundClock:
    """Make the run's clock. `start`: when round 0 began; 0: not known."""
    return resolve(manifest.sync).round_clock(start)


def known_start(context: JoinContext, manifest: Manifest) -> float:
    """Return when round 0 began, as far as manifest or home tell; 0: they do not."""
    return manifest.start or _kept_start(context.folder)


async def _offsets(context: JoinContext, records: Sequence[PeerRecord]) -> list[float]:
    """What the own clock is off by, as each of those says who answer in time."""
    found: list[float] = []

    async def greet(record: PeerRecord) -> None:
        with contextlib.suppress(ExchangeError):  # one that cannot be greeted tells nothing about our clock
            found.append((await context.transport.hello(record, HELLO_S)).clock_offset_s)

    greeting = [asyncio.create_task(greet(record)) for record in records]
    try:
        for wait_s in (GREETED_S, HELLO_S):
            if greeting and not found:
                await asyncio.wait(greeting, timeout=wait_s)
        return found
    finally:
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)


def _kept_start(folder: RunFolder | None) -> float:
    if folder is None:
        return 0.0
    try:
        return float((folder.path / "run_start").read_text())
    except (OSError, ValueError):
        return 0.0


def keep_start(folder: RunFolder, start: float) -> None:
    """For the next start, when nobody may be there to say. Raises HomeUnusable."""
    write_whole(folder.path / "run_start", repr(start).encode())
