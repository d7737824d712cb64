"""Runs the rounds beside the daemon's background tasks, limits how long they drain, and follows the operator's
amendments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from peer.clock.local_time import local_time
from peer.errors import StartChanged
from peer.membership.statement_sync import ensure_admitted
from peer.ports.console import Say
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.schedule import RoundClock
from peer.rounds.loop import RoundLoop
from peer.rounds.status import RoundStatus
from peer.run.resolve import resolve
from peer.run.statements.log import StatementLog

if TYPE_CHECKING:
    from peer.joining.report import JoinReport
    from peer.joining.sequence import JoinTerms
    from peer.node.open import OpenNode
    from peer.run.manifest import Manifest
    from peer.trainer.client import TrainerClient

LOOK_S = 0.2


async def run_until_drained(
    loop: RoundLoop,
    first_round: int,
    beside: Sequence[Coroutine[Any, Any, None]],
    say: Say,
    limit_s: Callable[[], float],
) -> None:
    """Run the rounds and `beside`, and return when the rounds are over or drained. An exchange that takes longer than
    `limit_s` during the drain is abandoned.

    The coroutines in `beside` run until cancelled at the end. An exception of one of them, or of the rounds, is raised
    here."""
    playing = asyncio.create_task(loop.run(first_round))
    background = [asyncio.create_task(one) for one in beside]
    limit = asyncio.timeout(None)
    try:
        async with limit:
            background.append(asyncio.create_task(_limit(loop, limit, limit_s)))
            await asyncio.wait({playing, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    task.result()
            await playing
    except TimeoutError:
        if not limit.expired():
            raise  # a TimeoutError of the rounds, not of the drain
        say("the exchange under way did not end in time; leaving without it")
    finally:
        for task in (playing, *background):
            task.cancel()
        await asyncio.wait({playing, *background})


async def _limit(loop: RoundLoop, limit: asyncio.Timeout, limit_s: Callable[[], float]) -> None:
    """Wait until the drain begins, then set the timeout of the rounds."""
    while not loop.leaving:
        await asyncio.sleep(LOOK_S)
    limit.reschedule(asyncio.get_running_loop().time() + limit_s())


async def follow_amendments(
    node: OpenNode, terms: JoinTerms, policy: Callable[[], RunPolicy], rounds: Callable[[], RoundClock]
) -> None:
    """Apply the operator's amendments until cancelled. `rounds`: returns the clock by which the rounds are counted.

    Raises JoinRefused when the operator bans us or our invitation has expired, and StartChanged when the operator
    signed another start than the clock's."""
    while True:
        now = policy()
        ensure_start_holds(terms.statements.log, rounds())
        ensure_admitted(now, node.local.me)
        terms.admission.ensure()
        if now.wire is not None:
            node.transport.narrow_wire(*now.wire)
        await asyncio.sleep(1.0)


def ensure_start_holds(log: StatementLog, rounds: RoundClock) -> None:
    """Raise StartChanged when this clock counts from another start than the operator's own key signed.

    A start that a node signed moves no peer that has begun, because the node's key may be stolen."""
    start = log.awaited_start()
    if log.start_is_final and start and rounds.start and start != rounds.start:
        former, holds = local_time(rounds.start), local_time(start)
        raise StartChanged(f"the operator signed that round 0 began at {holds}. This peer counted from {former}")


def watch_fitness(
    join_report: JoinReport, manifest: Manifest, trainer: TrainerClient, live: RoundStatus
) -> Coroutine[Any, Any, None]:
    """Return the coroutine that compares this machine's speed with what a round needs."""
    method, total = resolve(manifest.sync), manifest.rounds
    round_s = method.round_length if method.clock == "seconds" else None
    return join_report.watch(lambda: trainer.progress, round_s, lambda: total - live.round)
