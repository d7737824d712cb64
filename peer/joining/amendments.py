"""Get the operator's amendments before the first round."""

from __future__ import annotations

from peer.joining.context import JoinContext
from peer.joining.donors import live_round
from peer.membership.amendment_sync import AmendmentSync, ensure_admitted

CATCH_UP_FROM = 4
"""Before training, so many peers are asked for the operator's amendments."""


async def catch_up(context: JoinContext, held: AmendmentSync) -> None:
    """Take over the amendments that the others hold. Raises JoinRefused when the operator keeps us out."""
    records = list((await context.directory.peers()).values())
    able = [record for record in records if record.reach]
    for record in able[:CATCH_UP_FROM]:
        await held.ask(context.transport, record)
    ensure_admitted(held.ruling(live_round(records) or 0), context.me)
