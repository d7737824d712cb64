"""The run's clock before the first round: the own clock is corrected, and counts from the signed start."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from peer.errors import ExchangeError
from peer.joining.context import JoinContext
from peer.protocol.endpoints import voice_of
from peer.protocol.messages import PeerRecord, Welcome
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.block_votes import in_turn
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.run.statements.log import wants_start

HELLO_S = 5.0
GREETED, GREETED_S = 16, 1.0
"""Before training, so many peers are greeted at once for their clocks; who has not answered by then is waited for only
while nobody has."""


async def round_clock(context: JoinContext, manifest: Manifest, start: float) -> RoundClock:
    """Make the clock; the own clock is corrected first, by a Hello to some of the others. `start`: when round 0 began,
    as far as it was signed; 0: nobody has shown that yet, and the peer waits for it."""
    records = list((await context.directory.peers()).values())
    context.clock.bound(manifest.limits.max_clock_offset_s)
    some = in_turn(random.sample(records, len(records)), _named_network)[:GREETED]
    for welcome in await _greeted(context, some):
        # after the last answer: a Hello under way would count a correction twice
        context.clock.observe(welcome.clock_offset_s, welcome.voice)
    if not start and wants_start(manifest):
        context.say("waiting for the run's signed start: nobody has shown it yet")
    return clock_from(manifest, start)


def _named_network(record: PeerRecord) -> str:
    return voice_of(next(iter(record.endpoints), ""))


def clock_from(manifest: Manifest, start: float) -> RoundClock:
    """Make the run's clock. `start`: when round 0 began; 0: not known."""
    return resolve(manifest.sync).round_clock(start)


async def _greeted(context: JoinContext, records: Sequence[PeerRecord]) -> list[Welcome]:
    """What those say of the own clock who answer in time."""
    found: list[Welcome] = []

    async def greet(record: PeerRecord) -> None:
        with contextlib.suppress(ExchangeError):  # one that cannot be greeted tells nothing about our clock
            found.append(await context.transport.hello(record, HELLO_S))

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
