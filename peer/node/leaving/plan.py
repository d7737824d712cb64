"""What leaving takes on this machine, part by part, by what was measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.exchange.throughput import TransferLeft
from peer.observe.formatting import amount, duration
from peer.observe.status.value import LeavingStatus
from peer.state.checkpointer import Checkpointer

if TYPE_CHECKING:
    from peer.node.compose import DaemonPeer

EXCHANGE_LEAST_S = 4.0
"""Seconds that an exchange under way is always given."""
EXCHANGE_MOST_S = 30.0
"""An exchange that would take longer is given up after `EXCHANGE_LEAST_S`; its work is kept in the checkpoint."""
CLOSING_S = 2.0
"""Seconds for the record's withdrawal, the connections and the child processes."""
MARGIN = 0.25
"""Part of the measured times that is announced on top of them."""
SHOWN_S = 0.5
"""A shorter part is not named."""


@dataclass(frozen=True, slots=True)
class LeavingPart:
    """One thing that is done before the daemon ends."""

    name: str
    seconds: float
    why: str
    """How the time is known, or why there is none, for a person."""


@dataclass(frozen=True, slots=True)
class LeavingPlan:
    """What a daemon does before it ends, and how long that takes."""

    parts: tuple[LeavingPart, ...] = ()
    at: float = field(default_factory=time.monotonic)

    @property
    def announced_s(self) -> float:
        """Seconds, with the margin."""
        return CLOSING_S + (1 + MARGIN) * sum(part.seconds for part in self.parts)

    @property
    def exchange_limit_s(self) -> float:
        """Seconds after which an exchange under way is given up."""
        expected = sum(part.seconds for part in self.parts if part.name == "exchange")
        return min(EXCHANGE_LEAST_S + 2 * expected, EXCHANGE_LEAST_S + EXCHANGE_MOST_S)

    def summary(self) -> str:
        """Write the plan as one line: `about 23 s: exchange 6 s, checkpoint 12 s`."""
        named = [f"{part.name} {duration(part.seconds)}" for part in self.parts if part.seconds >= SHOWN_S]
        about = f"about {duration(self.announced_s)}"
        return f"{about}: {', '.join(named)}" if named else about

    def why(self) -> str:
        """Write every part with its reason, for the journal."""
        return "; ".join(f"{part.name} {part.seconds:.1f} s: {part.why}" for part in self.parts)

    def report(self) -> LeavingStatus:
        """For `peer status`."""
        return LeavingStatus(
            told=self.summary(),
            announced_s=round(self.announced_s, 1),
            parts={part.name: round(part.seconds, 1) for part in self.parts},
            since_s=round(time.monotonic() - self.at, 1),
            why=self.why(),
        )


def leaving_plan(peer: DaemonPeer | None) -> LeavingPlan:
    """Plan the way out of a peer that trains. None: there is nothing to save yet."""
    if peer is None:
        return LeavingPlan()
    parts, checkpointer = peer.parts, peer.checkpointer
    evaluations, exchanging = parts.loop.evaluations, parts.loop.exchanging
    return LeavingPlan(
        (
            exchange_part(exchanging, parts.strategy.transfers.left()),
            step_part(checkpointer.pace.boundary_s),
            checkpoint_part(checkpointer),
            LeavingPart("evaluation", evaluations.last_s(exchanging), evaluations.reason(exchanging)),
        )
    )


def exchange_part(under_way: bool, left: TransferLeft | None) -> LeavingPart:
    """Return what the exchange under way takes: the bytes that are left over the measured rate."""
    if not under_way:
        return LeavingPart("exchange", 0.0, "none is under way")
    if left is None or not left.rate:
        return LeavingPart("exchange", EXCHANGE_LEAST_S, "no rate is known of it")
    rest = f"{amount(left.nbytes, 'bytes')} are left at {amount(left.rate, 'bytes')}/s"
    if left.seconds > EXCHANGE_MOST_S:
        why = f"given up, as {rest}: {duration(left.seconds)}, and a leave waits {EXCHANGE_MOST_S:.0f} s"
        return LeavingPart("exchange", EXCHANGE_LEAST_S, why)
    return LeavingPart("exchange", left.seconds, rest)


def step_part(boundary_s: float) -> LeavingPart:
    """Return what the trainer's step under way takes."""
    return LeavingPart("step", boundary_s, "the trainer ends its step; this is the longest of the last")


def checkpoint_part(checkpointer: Checkpointer) -> LeavingPart:
    """Return what the last checkpoint takes, and the one that is being completed."""
    pace = checkpointer.pace
    if checkpointer.completing:
        return LeavingPart("checkpoint", 2 * pace.write_s, f"{pace.write_s_source}; another one is being completed")
    return LeavingPart("checkpoint", pace.write_s, pace.write_s_source)
