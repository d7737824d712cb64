"""Builds the exchange strategy that the run's method names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from peer.aio.threads import Offload
from peer.codec.error_feedback import ErrorFeedback
from peer.codec.plain import Codec
from peer.codec.registry import EVERY
from peer.codes import Code
from peer.exchange.buffers import Buffers
from peer.exchange.deadlines import ASSUMED_RATE, LONGEST_PART
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMember
from peer.exchange.group.sparse_result import SparseResult
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.pair.acceptance import PartnerAcceptance
from peer.exchange.pair.check import ParamsCheck
from peer.exchange.pair.lattice_swap import LatticeSwap
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.partners import PartnerMemory
from peer.exchange.pair.rates import SwapRates
from peer.exchange.pair.strategy import PairStrategy
from peer.exchange.pair.swap import PairSwap, Swaps
from peer.exchange.solo import SoloStrategy
from peer.exchange.strategy import ExchangeControls, ExchangeStrategy
from peer.membership.parts import MembershipParts
from peer.methods.codec_specs import SPARSE
from peer.methods.method import Method
from peer.methods.topology import GROUP, PAIR, SOLO, Topology
from peer.observe import events
from peer.outer.robust_mean import WEIGHTS
from peer.outer.state import OuterState
from peer.ports.memory_store import ExchangeStores
from peer.ports.peer import PeerPorts
from peer.protocol.model.fragments import block_spans
from peer.protocol.model.layout import Layout
from peer.run.plan import RunPlan

NEED_FEEDBACK = ("topk",)
"""Codecs so lossy that a group has to use error feedback with them."""
DIFFERENCES = "modulo"
"""Prefix of the codecs that decode params relative to the receiver's own. The rest of the name is the bits per
parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """The parts of a peer that an exchange strategy is built from."""

    plan: RunPlan
    outer: OuterState
    ports: PeerPorts
    members: MembershipParts
    matchmaker: Matchmaker
    stores: ExchangeStores
    emit: Callable[[events.Event], None]
    controls: ExchangeControls


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHooks:
    """Wrappers around the values that a peer sends. The defaults send honest values; the liars of `peer.lab.attack`
    replace them."""

    swaps: Callable[[PairSwap], Swaps] = lambda swaps: swaps
    mean: Callable[[MeanTerms], MeanTerms] = lambda terms: terms
    member: type[GroupMember] = GroupMember


HONEST = SendHooks()

MakeStrategy = Callable[[ExchangeContext], ExchangeStrategy]


def make_strategy(parts: ExchangeContext, hooks: SendHooks = HONEST) -> ExchangeStrategy:
    """Build the exchange strategy that the run's method names."""
    method = parts.plan.method
    return MAKERS[method.topology_spec](parts, hooks)


def _pairs(parts: ExchangeContext, hooks: SendHooks) -> PairStrategy:
    plan, layout = parts.plan, parts.outer.layout
    ports, members, controls = parts.ports, parts.members, parts.controls
    codec = codec_of(plan.method.codec, ports.offload)
    sizes = [layout.fragment_elements(f) for f in range(len(layout.fragments))]
    return PairStrategy(
        plan=plan,
        outer=parts.outer,
        matchmaker=parts.matchmaker,
        swaps=hooks.swaps(
            PairSwap(
                ports.transport,
                ports.clock,
                codec,
                ports.offload,
                plan.max_upload,
                members.slow_peers.own_timings,
                _rates(plan),
                controls.transfers,
            )
        ),
        buffers=Buffers(plan.method.vectors * max(sizes), len(sizes)),
        partners=PartnerMemory(
            plan.run_id,
            ports.clock,
            members.peer_table,
            members.reputation,
            members.slow_peers,
            parts.emit,
            members.receipts,
            ports.transport.relay_gone,
        ),
        acceptance=PartnerAcceptance(
            plan.method.acceptance,
            ParamsCheck(ports.trainer, ports.secret),
            ports.offload,
            parts.stores.partners,
            lambda peer, why: members.reputation.penalize(peer, Code.NONSENSE, why),
            parts.emit,
            plan.unchecked,
        ),
        controls=controls,
    )


def _rates(plan: RunPlan) -> SwapRates:
    method = plan.method
    longest_s = LONGEST_PART * method.sync_every if method.clock == "seconds" else math.inf
    return SwapRates(plan.assumed_rate or ASSUMED_RATE, longest_s)


def codec_of(name: str, offload: Offload) -> Codec | LatticeSwap:
    """Return the codec for the payloads of a pair."""
    if name.startswith(DIFFERENCES):
        return LatticeSwap(int(name.removeprefix(DIFFERENCES)), offload)
    return EVERY[name]


def mean_terms_of(method: Method, layout: Layout) -> MeanTerms:
    """Return the terms of a group's mean for this method."""
    codec, weigh = EVERY[method.codec], WEIGHTS[method.weights]
    result = SparseResult(codec, weigh) if method.result_codec == SPARSE else EVERY[method.result_codec]
    fragments = range(len(layout.fragments) if method.mean == "rda" else 0)
    tensors = tuple(block_spans(layout, fragment) for fragment in fragments)
    return MeanTerms(codec=codec, result_codec=result, weigh=weigh, tensors=tensors)


def _groups(parts: ExchangeContext, hooks: SendHooks) -> GroupStrategy:
    plan, layout, ports = parts.plan, parts.outer.layout, parts.ports
    method = plan.method
    terms = GroupTerms(
        run_id=plan.run_id,
        me=plan.me,
        elements=tuple(layout.fragment_elements(f) for f in range(len(layout.fragments))),
        mean=hooks.mean(mean_terms_of(method, layout)),
        max_group=method.max_group,
        founders=method.founders,
        max_upload=plan.max_upload,
    )
    context = GroupContext(
        terms,
        ports.signer,
        ports.transport,
        ports.clock,
        parts.members.peer_table,
        parts.members.reputation,
        ports.offload,
        parts.controls.transfers,
    )
    lossy = method.codec in NEED_FEEDBACK
    feedback = {f: ErrorFeedback(terms.mean.codec) for f in range(len(layout.fragments))} if lossy else {}
    return GroupStrategy(
        method=method,
        outer=parts.outer,
        group=hooks.member(context, parts.stores.quorums, plan.scratch, parts.emit),
        buffers=Buffers(max(terms.elements), len(terms.elements)),
        offload=ports.offload,
        controls=parts.controls,
        feedback=feedback,
    )


def _alone(parts: ExchangeContext, hooks: SendHooks) -> SoloStrategy:
    return SoloStrategy()


MAKERS: dict[Topology, Callable[[ExchangeContext, SendHooks], ExchangeStrategy]] = {
    PAIR: _pairs,
    GROUP: _groups,
    SOLO: _alone,
}
