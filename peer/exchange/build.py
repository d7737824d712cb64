"""The topology that a method names, built around a peer's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peer.aio.threads import Offload
from peer.codec.error_feedback import Feedback
from peer.codec.plain import Codec
from peer.codec.registry import EVERY
from peer.exchange.buffers import Buffers
from peer.exchange.group.context import GroupContext
from peer.exchange.group.member import GroupMember
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.pair.lattice_swap import LatticeSwap
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.strategy import Pairs
from peer.exchange.pair.swap import PairSwap
from peer.exchange.solo import SoloStrategy
from peer.exchange.strategy import ExchangeStrategy
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.clock import Clock
from peer.ports.signer import Signer
from peer.ports.transport import Transport
from peer.run.plan import RunPlan

NEED_FEEDBACK = ("topk",)
DIFFERENCES = "modulo"
"""And the bits of a parameter: the codecs that read params against the receiver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What a topology is built from. `seal`: needed for groups only."""

    plan: RunPlan
    outer: OuterState
    transport: Transport
    clock: Clock
    view: PeerTable
    conduct: Reputation
    matchmaker: Matchmaker
    diagnosis: SlowPeerMonitor
    offload: Offload
    emit: Callable[[events.Event], None]
    seal: Signer | None
    wanted: Callable[[], bool]
    """Whether others are still looked for: not when we are leaving."""
    why_not: Callable[[], str]
    """Why nothing is to be sent now, for a person; empty: it may be."""
    tell: Callable[[str], None]
    """Told what is going on, for `peer status`."""


def make_strategy(parts: ExchangeContext) -> ExchangeStrategy:
    method = parts.plan.method
    if method.topology == "solo":
        return SoloStrategy()
    return _pairs(parts) if method.topology == "pair" else _groups(parts)


def _pairs(parts: ExchangeContext) -> Pairs:
    plan, layout = parts.plan, parts.outer.layout
    codec = codec_of(plan.method.codec, parts.offload)
    sizes = [layout.fragment_elements(f) for f in range(len(layout.fragments))]
    return Pairs(
        method=plan.method,
        run_id=plan.run_id,
        me=plan.me,
        outer=parts.outer,
        matchmaker=parts.matchmaker,
        swaps=PairSwap(parts.transport, parts.clock, codec, parts.offload, plan.max_upload, parts.diagnosis.tell),
        buffers=Buffers(plan.method.vectors * max(sizes), len(sizes)),
        diagnosis=parts.diagnosis,
        offload=parts.offload,
        clock=parts.clock,
        view=parts.view,
        conduct=parts.conduct,
        emit=parts.emit,
        wanted=parts.wanted,
        why_not=parts.why_not,
        tell=parts.tell,
    )


def codec_of(name: str, offload: Offload) -> Codec | LatticeSwap:
    """Of what the two of a pair send each other."""
    if name.startswith(DIFFERENCES):
        return LatticeSwap(int(name.removeprefix(DIFFERENCES)), offload)
    return EVERY[name]


def _groups(parts: ExchangeContext) -> GroupStrategy:
    plan, layout = parts.plan, parts.outer.layout
    method = plan.method
    assert method.topology == "group", method
    assert parts.seal is not None, "rosters are signed"
    around = GroupContext(
        run_id=plan.run_id,
        me=plan.me,
        seal=parts.seal,
        transport=parts.transport.group,
        clock=parts.clock,
        view=parts.view,
        conduct=parts.conduct,
        offload=parts.offload,
        codec=EVERY[method.codec],
        result_codec=EVERY[method.result_codec],
        elements=tuple(layout.fragment_elements(f) for f in range(len(layout.fragments))),
        max_group=method.max_group,
        max_upload=plan.max_upload,
        founders=method.founders,
    )
    lossy = method.codec in NEED_FEEDBACK
    feedback = {f: Feedback(around.codec) for f in range(len(layout.fragments))} if lossy else {}
    return GroupStrategy(
        method=method,
        outer=parts.outer,
        group=GroupMember(around),
        buffers=Buffers(max(around.elements), len(around.elements)),
        offload=parts.offload,
        wanted=parts.wanted,
        why_not=parts.why_not,
        tell=parts.tell,
        feedback=feedback,
    )
