"""Get the operator's amendments before the first round."""

from __future__ import annotations

from collections.abc import Callable

from peer.membership.amendment_sync import AmendmentSync, ensure_admitted
from peer.node.open import OpenNode
from peer.observe import events
from peer.protocol.messages import PeerId
from peer.protocol.policy.amendments import describe
from peer.run.amendments import Chain
from peer.run.manifest import Manifest

CATCH_UP_FROM = 4
"""Before training, so many peers are asked for the operator's amendments."""


async def first_amendments(
    node: OpenNode, manifest: Manifest, emit: Callable[[events.Event], None], banned: Callable[[PeerId], str]
) -> AmendmentSync:
    """What is kept and what the others hold. `banned` tells why a peer is kept out now. Raises JoinRefused when that is
    us."""
    chain = Chain(node.run_id, manifest.operator)
    kept, in_steps = node.folder.path / "amendments.jsonl", manifest.sync.clock == "steps"
    held = AmendmentSync(chain, kept, emit, in_steps=in_steps)
    held.told = lambda amendment: node.say(describe(amendment))
    node.donor.amendments = held
    node.transport.obey(banned)
    records = list((await node.directory.peers()).values())
    able = [record for record in records if record.reachable and record.endpoints]
    for record in able[:CATCH_UP_FROM]:
        await held.ask(node.transport, record)
    ensure_admitted(held.ruling(max((record.round for record in records), default=0)), node.me)
    return held
