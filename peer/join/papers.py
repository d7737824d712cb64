"""Get the papers of a run, before anything depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from peer.join.context import JoinContext
from peer.membership.paper_sync import PaperSync
from peer.protocol.messages import PeerId, PeerRecord

ASKED_AT_ONCE = 4
ASKED = 16
"""Before training, so many peers are asked at most; afterwards a daemon goes on asking anyway."""


async def catch_up_papers(context: JoinContext, held: PaperSync, nodes: Container[PeerId]) -> None:
    """Take over the papers that others hold. `nodes`: the operator's, which are asked first.

    Stops at the first few who answer, and goes on to more of them only while the run's start is wanted and unknown."""
    able = [record for record in (await context.directory.peers()).values() if record.reach]
    context.rng.shuffle(able)
    able.sort(key=lambda record: record.peer_id not in nodes)
    for at in range(0, min(len(able), ASKED), ASKED_AT_ONCE):
        if await _asked(context, held, able[at : at + ASKED_AT_ONCE]) and not held.wanting:
            return


async def ask_for_start(context: JoinContext, held: PaperSync, records: Sequence[PeerRecord]) -> None:
    """Ask these for the run's signed start while it is wanted and unknown. Never raises."""
    if held.wanting and records:
        await _asked(context, held, records[:ASKED])


async def _asked(context: JoinContext, held: PaperSync, records: Sequence[PeerRecord]) -> bool:
    """Ask these at once, until one has told all that is wanted; whether somebody answered."""
    asking = {asyncio.create_task(held.ask(context.transport, record)) for record in records}
    answered = False
    try:
        for answer in asyncio.as_completed(asking):
            answered = await answer or answered
            if answered and not held.wanting:
                break
        return answered
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
