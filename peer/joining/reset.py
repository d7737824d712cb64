"""Restart of a run from a state whose digest the operator names in an amendment (`refound`): fetching that state, and
deciding whether a state descends from it."""

from __future__ import annotations

import torch
from blake3 import blake3

from peer.aio.threads import Offload
from peer.errors import ExchangeError
from peer.joining.resume import JoinedState
from peer.ports.transport import StateCalls
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.policy.donors import ASK_S, DonorRates, donors_of_reset
from peer.state.snapshot import check_index
from peer.state.transfer.download import Download, Outcome
from peer.state.transfer.pieces import PieceStore


def digest_of(params: torch.Tensor) -> bytes:
    """Return the BLAKE3 digest of `outer_params` (fp32, little endian, layout order), as an amendment names it."""
    return blake3(params.numpy().data.cast("B")).digest()


class ResetStates:
    """Fetches the state of a given digest from the operator's nodes.

    A node that gave another state is not asked for it again: otherwise a node started without `--state` would send its
    model to every peer every few seconds."""

    def __init__(self, layout: Layout, transport: StateCalls, offload: Offload) -> None:
        self._layout = layout
        self._transport = transport
        self._offload = offload
        self._others: dict[PeerId, tuple[bytes, ...]] = {}
        """Per node, the last state that did not match: the digest wanted, then the digests of the node's pieces."""
        self._rates = DonorRates()

    async def fetch(self, digest: bytes, records: list[PeerRecord]) -> torch.Tensor | None:
        """Fetch the state with this digest (flat fp32). Return None while no node serves it. Never raises."""
        for record in donors_of_reset(records):
            try:
                params = await self._from(record, digest)
            except ExchangeError:
                continue
            if params is not None:
                return params
        return None

    async def _from(self, record: PeerRecord, digest: bytes) -> torch.Tensor | None:
        index = await self._transport.describe_state(record, ASK_S)
        check_index(index, self._layout)
        pieces = (digest, *(piece.digest for piece in index.pieces))
        if self._others.get(record.peer_id) == pieces:
            return None
        store = PieceStore(self._layout, None, momentum=False)
        download = Download(self._transport, store, self._rates, Outcome(), offload=self._offload)
        download.add(record, index)
        await download.run()
        if not store.complete:
            return None
        params, _ = store.state()
        if await self._offload(lambda: digest_of(params)) == digest:
            return params
        self._others[record.peer_id] = pieces
        return None


def founding_of(state: JoinedState, now: RunPolicy) -> bytes:
    """Return the digest of the restart that a state descends from. Empty: none. A checkpoint stores it."""
    if state.founded is not None:
        return state.founded
    return founded_on(state.outer.params, state.round, now)


def founded_on(params: torch.Tensor, donors_round: int, now: RunPolicy) -> bytes:
    """Return the digest of the restart that a donor's state descends from. Empty: it is older than the restart.

    A state descends from the restart in force if it is the named state itself, or if its donor worked in a round in
    which the restart had taken effect."""
    if now.founded and (donors_round >= now.founded_round or digest_of(params) == now.founded):
        return now.founded
    return b""
