"""Makes the run's clock before the first round: corrects the own clock by Hello calls, and counts rounds from the
signed start."""

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
"""Timeout of one Hello call, in seconds."""
GREETED, GREETED_S = 16, 1.0
"""Number of peers that are greeted in parallel to compare clocks, and the seconds in which they have to answer. If none
has answered by then, the wait goes on for up to `HELLO_S`."""


async def round_clock(context: JoinContext, manifest: Manifest, start: float) -> RoundClock:
    """Make the run's clock, after correcting the own clock by Hello calls to up to `GREETED` peers of different
    networks. `start`: start of round 0 by the signed statements, seconds since the epoch. 0: not known yet, and the
    peer waits for it."""
    records = list((await context.directory.peers()).values())
    context.clock.bound(manifest.limits.max_clock_offset_s)
    some = in_turn(random.sample(records, len(records)), _named_network)[:GREETED]
    for welcome in await _greeted(context, some):
        # correct only after the last answer: an offset measured before a correction would be applied on top of it
        context.clock.observe(welcome.clock_offset_s, welcome.voice)
    if not start and wants_start(manifest):
        context.say("waiting for the run's signed start: nobody has shown it yet")
    return clock_from(manifest, start)


def _named_network(record: PeerRecord) -> str:
    return voice_of(next(iter(record.endpoints), ""))


def clock_from(manifest: Manifest, start: float) -> RoundClock:
    """Make the run's clock. `start`: start of round 0, seconds since the epoch. 0: not known."""
    return resolve(manifest.sync).round_clock(start)


async def _greeted(context: JoinContext, records: Sequence[PeerRecord]) -> list[Welcome]:
    """Send Hello to these peers, and return the answers that arrive in time."""
    found: list[Welcome] = []

    async def greet(record: PeerRecord) -> None:
        with contextlib.suppress(ExchangeError):  # an unreachable peer gives no information about our clock
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
