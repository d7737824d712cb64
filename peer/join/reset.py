"""Starting a run again from a state its operator names by digest: who has it, and whether ours comes from it."""

from __future__ import annotations

import torch
from blake3 import blake3

from peer.aio.threads import Offload
from peer.errors import ExchangeError
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import RunPolicy
from peer.state.snapshot import fetch_state


def digest_of(params: torch.Tensor) -> bytes:
    """BLAKE3 of `outer_params`, fp32 little endian, in layout order: what `refound` names."""
    return blake3(params.numpy().data.cast("B")).digest()


DESCRIBE_S = 10.0


class ResetStates:
    """Fetches such a state from the operator's nodes. What was fetched once and is another state is not fetched again:
    a node started without `--state` would send the whole model to everybody every few seconds."""

    def __init__(self, layout: Layout, transport: Transport, offload: Offload) -> None:
        self._layout = layout
        self._transport = transport
        self._offload = offload
        self._others: dict[PeerId, tuple[bytes, ...]] = {}
        """What a node gave last that was not it: digests, of the state wanted and of the pieces."""

    async def fetch(self, digest: bytes, records: list[PeerRecord]) -> torch.Tensor | None:
        """The state with this digest (flat fp32) from a node that serves it; None: nobody does (yet). Never raises."""
        for record in records:
            if record.status is Status.SERVING:
                try:
                    params = await self._from(record, digest)
                except ExchangeError:
                    continue
                if params is not None:
                    return params
        return None

    async def _from(self, record: PeerRecord, digest: bytes) -> torch.Tensor | None:
        index = await self._transport.describe_state(record, DESCRIBE_S)
        pieces = (digest, *(piece.digest for piece in index.pieces))
        if self._others.get(record.peer_id) == pieces:
            return None
        params, _ = await fetch_state(self._transport, record, self._layout)
        if await self._offload(lambda: digest_of(params)) == digest:
            return params
        self._others[record.peer_id] = pieces
        return None


def founded_on(params: torch.Tensor, donors_round: int, now: RunPolicy) -> bytes:
    """Which founding a donor's state comes from: the one in force if it is that state, or if the donor worked in a
    round in which that had taken effect. Empty: an earlier one."""
    if now.founded and (donors_round >= now.founded_round or digest_of(params) == now.founded):
        return now.founded
    return b""
