"""Starting a run again from a state its operator names by digest: who has it, and whether ours comes from it."""

from __future__ import annotations

import torch
from blake3 import blake3

from peer.daemon.interfaces import Transport
from peer.errors import ExchangeError
from peer.protocol.layout import Layout
from peer.protocol.messages import PeerRecord, Status
from peer.protocol.ruling import Ruling
from peer.state.snapshot import fetch_state


def digest_of(params: torch.Tensor) -> bytes:
    """BLAKE3 of `outer_params`, fp32 little endian, in layout order: what `refound` names."""
    return blake3(params.numpy().data.cast("B")).digest()


async def fetch_founded(
    digest: bytes, layout: Layout, records: list[PeerRecord], transport: Transport
) -> torch.Tensor | None:
    """The state with this digest from a node that serves it (`peer bootstrap --state`); None: nobody does (yet)."""
    for record in records:
        if record.status is Status.SERVING:
            try:
                params, _ = await fetch_state(transport, record, layout)
            except ExchangeError:
                continue
            if digest_of(params) == digest:
                return params
    return None


def founded_on(params: torch.Tensor, donors_round: int, now: Ruling) -> bytes:
    """Which founding a donor's state comes from: the one in force if it is that state, or if the donor worked in a
    round in which that had taken effect. Empty: an earlier one."""
    if now.founded and (donors_round >= now.founded_round or digest_of(params) == now.founded):
        return now.founded
    return b""
