"""Get the papers of a run, before anything depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from peer.joining.context import JoinContext
from peer.membership.paper_sync import PaperSync
from peer.protocol.messages import PeerId, PeerRecord

ASKED_AT_ONCE = 4
ASKED = 16
"""Before training, so many peers are asked at most; afterwards a daemon goes on asking anyway."""

MORE_S = 0.5
"""Seconds that the others asked at once have after the first answer."""


async def catch_up_papers(
    context: JoinContext, held: PaperSync, nodes: Container[PeerId], *, everybody: bool = False
) -> None:
    """Take over the papers that others hold. `nodes`: the operator's, which are asked first.

    Stops at the first few who answer, and goes on to more of them only while the run's start is wanted and unknown, or
    for `everybody`."""
    able = [record for record in (await context.directory.peers()).values() if record.reach]
    context.rng.shuffle(able)
    able.sort(key=lambda record: record.peer_id not in nodes)
    for at in range(0, min(len(able), ASKED), ASKED_AT_ONCE):
        if await _asked(context, held, able[at : at + ASKED_AT_ONCE]) and not held.wanting and not everybody:
            return


async def ask_for_start(context: JoinContext, held: PaperSync, records: Sequence[PeerRecord]) -> None:
    """Ask these for the run's signed start while it is wanted and unknown. Never raises."""
    if held.wanting and records:
        await _asked(context, held, records[:ASKED])


async def _asked(context: JoinContext, held: PaperSync, records: Sequence[PeerRecord]) -> bool:
    """Ask these at once. Return whether somebody answered.

    Once one answer has brought what is wanted, the others have `MORE_S`: what one peer shows may have been taken back
    by a paper that another one holds."""
    asking = {asyncio.create_task(held.ask(context.transport, record)) for record in records}
    answered, left = False, asking
    try:
        while left and not (answered and not held.wanting):
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            answered = answered or any(one.result() for one in done)
        if left:
            await asyncio.wait(left, timeout=MORE_S)
        return answered
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
