"""Lying shard owners: they give all members the same signed result, which is not the mean."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import pytest
import torch
from torch import Tensor

import peer.exchange.group.member
from peer.codec.plain import Payload
from peer.codes import Code
from peer.errors import PartnerRefused
from peer.exchange.group.reduce import encoded
from peer.exchange.group.reducer import ShardReducer
from peer.protocol.group.shards import ShardResult
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import Source

Lie = Callable[[Tensor], Tensor]
"""Function of the honest mean that returns the result which the owner sends."""


def owners_lie(
    patch: pytest.MonkeyPatch, liars: Container[PeerId], lie: Lie, *, applied: bool = True, shown: bool = True
) -> None:
    """Make the liars return this result from now on. applied: the liars apply it too; otherwise they leave their shard
    unchanged, as members that refuse it do, and stay in the group. shown: whether they show its contributions."""

    class LyingReducer(ShardReducer):
        async def run(self, own: Source, tokens: int, into: Tensor, signature: bytes = b"") -> ShardResult:
            result = await super().run(own, tokens, into, signature)
            if self._context.terms.me in liars and not applied:
                raise PartnerRefused(Code.NONE, "it does not apply its lie")
            return result

        async def _signed(self, payload: Payload, named: tuple[int, ...]) -> ShardResult:
            terms = self._context.terms
            if terms.me in liars:
                self.shown = self.shown if shown else None
                payload = _told(terms.mean.result_codec, payload, self.shard.elements, lie)
            return await super()._signed(payload, named)

    patch.setattr(peer.exchange.group.member, "ShardReducer", LyingReducer)


def _told(codec: Any, payload: Payload, elements: int, lie: Lie) -> Payload:
    mean = torch.empty(elements)
    codec.decode_into(payload, mean)
    return encoded(codec, lie(mean))
