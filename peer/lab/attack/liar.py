"""The lying parts of a peer. All its other parts are those of an ordinary peer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peer.codec.plain import Codec, Payload
from peer.codec.stream import Flat
from peer.errors import UsageError
from peer.exchange.build import MakeStrategy, SendHooks, make_strategy
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.group.sparse_result import SparseResult
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.exchange.payloads import Concatenated
from peer.lab.attack.lies import BACKDOOR, DONOR, LIES, OWNER_LIE, Lie
from peer.methods.codec_specs import SPARSE
from peer.methods.method import Method
from peer.node.handler import DonatedState
from peer.outer.state import OuterState
from peer.protocol.group.contributor_judge import PartsComparison
from peer.protocol.group.roster import Roster
from peer.protocol.messages import PeerId, RoundKey, SwapReport

OWNERS_FACTOR = -10.0
"""Factor by which a lying owner multiplies its shard's mean."""
DONORS_AHEAD = 60
"""Rounds by which a lying donor claims to be ahead of its own round."""
DONORS_RMS = 0.1
"""Root mean square of a lying donor's noise. It has the size of weights, so that only the loss reveals it."""


class LyingSwap:
    """Swaps as `PairSwap` does, but sends a lie. Received values are decoded and checked as usual."""

    def __init__(self, swaps: PairSwap, lie: Lie) -> None:
        self._swaps = swaps
        self._lie = lie

    async def swap(self, terms: PartnerTerms, own: Flat, outer: Tensor, into: Tensor) -> SwapReport:
        """Swap as `PairSwap.swap`. If params and outer_params are sent, only the params are a lie."""
        elements = outer.numel()
        said: Flat = self._lie(terms.key, own[0:elements], outer)
        if own.numel() > elements:
            said = Concatenated(said, own[elements : own.numel()])
        return await self._swaps.swap(terms, own, outer, into, said)


class LyingMember(GroupMember):
    """Takes part in a group as `GroupMember` does, but contributes a lie. Received values are decoded and checked as
    usual. As the owner of a shard it excludes no contributor, because it would otherwise exclude itself."""

    lie: Lie

    async def exchange(
        self,
        key: RoundKey,
        gradient: Flat,
        base: bytes,
        tokens: int,
        opens_at: float,
        closes: float,
        give_up: float = math.inf,
        into: Tensor | None = None,
        outer: Flat | None = None,
    ) -> GroupMean:
        """Exchange as `GroupMember.exchange`, with a false gradient."""
        assert outer is not None
        params = outer[0 : gradient.numel()]
        said = params - self.lie(key, params - gradient[0 : gradient.numel()], params)
        return await super().exchange(key, said, base, tokens, opens_at, closes, give_up, into, outer)

    def _leave_out(self, roster: Roster, compared: PartsComparison) -> Collection[PeerId]:
        return ()


class LyingCodec:
    """A codec that encodes its values multiplied by a factor. It decodes as usual."""

    def __init__(self, codec: Codec, factor: float) -> None:
        self.name = codec.name
        self._codec = codec
        self._factor = factor

    def nbytes(self, elements: int) -> int:
        return self._codec.nbytes(elements)

    def encode(self, values: Tensor) -> bytes:
        return self._codec.encode(self._factor * values)

    def decode(self, payload: Payload, elements: int) -> Tensor:
        return self._codec.decode(payload, elements)

    def decode_into(self, payload: Payload, into: Tensor) -> None:
        self._codec.decode_into(payload, into)

    def add(self, payload: Payload, into: Tensor, weight: float) -> None:
        self._codec.add(payload, into, weight)


def liar_of(kind: str, seed: int) -> MakeStrategy:
    """Return the function that builds the exchange strategy of one liar. Liars with the same seed collude."""
    if kind in (BACKDOOR, DONOR):
        return make_strategy
    if kind == OWNER_LIE:
        return partial(make_strategy, hooks=SendHooks(mean=_turned))
    lie = LIES[kind](seed)
    member = type("Liar", (LyingMember,), {"lie": staticmethod(lie)})
    return partial(make_strategy, hooks=SendHooks(swaps=lambda swaps: LyingSwap(swaps, lie), member=member))


def lying_donor(outer: OuterState, round_: Callable[[], int], now: Callable[[], float], **more: Any) -> DonatedState:
    """Build the state that a lying donor serves to joiners: noise, claimed to be of a round far ahead. `more`: further
    arguments of `DonatedState`."""
    noise = torch.randn(outer.params.shape, generator=torch.Generator().manual_seed(0))
    wild = OuterState(outer.layout, noise.mul_(DONORS_RMS), torch.zeros_like(noise))
    return DonatedState(wild, lambda: round_() + DONORS_AHEAD, now, **more)


def _turned(terms: MeanTerms) -> MeanTerms:
    assert not isinstance(terms.result_codec, SparseResult), "see ensure_fits"
    return replace(terms, result_codec=LyingCodec(terms.result_codec, OWNERS_FACTOR))


def ensure_fits(kind: str, method: Method) -> None:
    """Raise UsageError if the method has no exchange in which this lie could be sent."""
    if kind == DONOR:
        return
    if kind != OWNER_LIE:
        if not method.exchanges:
            fix = "Choose a preset of pairs or groups: gossip or diloco."
            raise UsageError(f"the attack {kind} needs partners, and this method has none", fix)
        return
    if not method.one_state:
        reason = f"the attack {kind} needs the topology group, this method has {method.topology}"
        raise UsageError(reason, "Choose --preset diloco.")
    if method.result_codec == SPARSE:
        reason = f"the attack {kind} cannot be: the members make a sparse result again from its parts"
        raise UsageError(reason, "Choose --preset diloco.")
