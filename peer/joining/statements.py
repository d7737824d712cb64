"""Fetches the signed statements of a run before anything depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from peer.joining.context import JoinContext
from peer.membership.statement_sync import StatementSync, ensure_admitted
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.policy.donors import live_round
from peer.run.statements.kinds import FAMILIES, PAPER, Family

ASKED_AT_ONCE = 4
ASKED = 16
"""Largest number of peers that are asked before training. Afterwards the daemon asks periodically."""

MORE_S = 0.5
"""Seconds that the other peers of a batch have after the first useful answer."""


async def catch_up(
    context: JoinContext,
    statements: StatementSync,
    nodes: Container[PeerId],
    families: Sequence[Family] = FAMILIES,
    *,
    everybody: bool = False,
) -> None:
    """Fetch the statements that other peers hold. `nodes`: the operator's nodes, which are asked first.

    Stops after the first batch with an answer, unless the run's start is still unknown or `everybody` is set."""
    able = [record for record in (await context.directory.peers()).values() if record.reach]
    context.rng.shuffle(able)
    able.sort(key=lambda record: record.peer_id not in nodes)
    for at in range(0, min(len(able), ASKED), ASKED_AT_ONCE):
        answered = await _asked(context, statements, able[at : at + ASKED_AT_ONCE], families)
        if answered and not statements.log.awaits_start and not everybody:
            return


async def ensure_still_admitted(context: JoinContext, statements: StatementSync, nodes: Container[PeerId]) -> None:
    """Fetch statements once more, since the user's answer or large files may have taken long. Raise JoinRefused when
    the operator has banned this peer."""
    await catch_up(context, statements, nodes)
    records = list((await context.directory.peers()).values())
    ensure_admitted(statements.log.policy(live_round(records) or 0), context.me)


async def ask_for_start(context: JoinContext, statements: StatementSync, records: Sequence[PeerRecord]) -> None:
    """Ask these peers for the run's signed start while it is unknown. Never raises."""
    if statements.log.awaits_start and records:
        await _asked(context, statements, records[:ASKED], [PAPER])


async def _asked(
    context: JoinContext, statements: StatementSync, records: Sequence[PeerRecord], families: Sequence[Family]
) -> bool:
    """Ask these peers in parallel. Return whether any of them answered.

    After an answer that brings what was missing, the others have `MORE_S`: one of them may hold a later delegation that
    revokes it."""
    asking = {asyncio.create_task(statements.fetch_from(context.transport, record, families)) for record in records}
    answered, left = False, asking
    try:
        while left and not (answered and not statements.log.awaits_start):
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            answered = answered or any(one.result() for one in done)
        if left:
            await asyncio.wait(left, timeout=MORE_S)
        return answered
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
