"""Get the signed statements of a run, before anything depends on them."""

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
"""Before training, so many peers are asked at most; afterwards a daemon goes on asking anyway."""

MORE_S = 0.5
"""Seconds that the others asked at once have after the first answer."""


async def catch_up(
    context: JoinContext,
    statements: StatementSync,
    nodes: Container[PeerId],
    families: Sequence[Family] = FAMILIES,
    *,
    everybody: bool = False,
) -> None:
    """Take over the statements that others hold. `nodes`: the operator's, which are asked first.

    Stops at the first few who answer, and goes on to more of them only while the run's start is wanted and unknown, or
    for `everybody`."""
    able = [record for record in (await context.directory.peers()).values() if record.reach]
    context.rng.shuffle(able)
    able.sort(key=lambda record: record.peer_id not in nodes)
    for at in range(0, min(len(able), ASKED), ASKED_AT_ONCE):
        answered = await _asked(context, statements, able[at : at + ASKED_AT_ONCE], families)
        if answered and not statements.log.awaits_start and not everybody:
            return


async def ensure_still_admitted(context: JoinContext, statements: StatementSync, nodes: Container[PeerId]) -> None:
    """Catch up once more, as a person's answer or large files may have taken long, and raise JoinRefused when the
    operator keeps us out."""
    await catch_up(context, statements, nodes)
    records = list((await context.directory.peers()).values())
    ensure_admitted(statements.log.policy(live_round(records) or 0), context.me)


async def ask_for_start(context: JoinContext, statements: StatementSync, records: Sequence[PeerRecord]) -> None:
    """Ask these for the run's signed start while it is wanted and unknown. Never raises."""
    if statements.log.awaits_start and records:
        await _asked(context, statements, records[:ASKED], [PAPER])


async def _asked(
    context: JoinContext, statements: StatementSync, records: Sequence[PeerRecord], families: Sequence[Family]
) -> bool:
    """Ask these at once. Return whether somebody answered.

    Once one answer has brought what is wanted, the others have `MORE_S`: what one peer shows may have been taken back
    by a paper that another one holds."""
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
