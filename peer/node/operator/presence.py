"""Keeps the operator's node in the directory, and reads the directory to follow the run."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from peer.membership.peer_table import lifetime
from peer.node.open import OpenNode
from peer.node.operator.given import ServedState
from peer.node.operator.keeper import StateKeeper
from peer.node.operator.run_progress import LONGEST_GAP_S
from peer.node.operator.start_time import StartTime
from peer.node.record import describe_self
from peer.protocol.messages import PeerId, PeerRecord


def _record(node: OpenNode, keeper: StateKeeper, lifetime_s: float) -> PeerRecord:
    return describe_self(
        node.address(),
        status=keeper.status,
        round_=keeper.round,
        tokens_per_s=0.0,
        now=node.local.clock.now(),
        lifetime_s=lifetime_s,
    )


async def announce(
    node: OpenNode,
    run_start: StartTime,
    served_state: ServedState,
    keeper: StateKeeper,
    look_every_s: float,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Read the directory and renew this node's record until cancelled. Until the run has begun, check every half second
    whether it can."""
    announced = learnt = -math.inf  # not 0, which is the present on a machine that has just booted
    lifetime_s, look_every_s = lifetime(look_every_s), min(look_every_s, LONGEST_GAP_S)
    said, place = (keeper.status, keeper.round), node.endpoints()
    while True:
        await run_start.settle()
        if now() - learnt >= look_every_s:
            served_state.learn((await node.directory.peers()).values())
            learnt = now()
        if keeper.ended and said != (keeper.status, keeper.round):
            announced = -math.inf  # peers wait for the end of the run to be announced
        if node.endpoints() != place:
            announced, place = -math.inf, node.endpoints()
        if now() - announced >= lifetime_s / 3:
            said = keeper.status, keeper.round
            await node.directory.announce(_record(node, keeper, lifetime_s))
            announced = now()
        await asyncio.sleep(1.0 if run_start.value else 0.5)


async def known(node: OpenNode) -> dict[PeerId, PeerRecord]:
    """Return the peers of the last read of the directory, which `announce` makes."""
    return node.directory.known()
