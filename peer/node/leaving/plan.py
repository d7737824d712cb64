"""Plans what a daemon does when it leaves, and estimates the time of each part from measurements."""

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
"""Seconds that an exchange under way always gets."""
EXCHANGE_MOST_S = 30.0
"""An exchange that needs longer is abandoned after `EXCHANGE_LEAST_S`. Its work is kept in the checkpoint."""
CLOSING_S = 2.0
"""Seconds for the record's withdrawal, the connections and the child processes."""
MARGIN = 0.25
"""Fraction that is added to the measured times in the announcement."""
SHOWN_S = 0.5
"""Shorter parts are not shown."""


@dataclass(frozen=True, slots=True)
class LeavingPart:
    """One thing that a daemon does before it ends."""

    name: str
    seconds: float
    why: str
    """Basis of the estimate, or why the part takes no time, for a person."""


@dataclass(frozen=True, slots=True)
class LeavingPlan:
    """What a daemon does before it ends, and how long that takes. `at`: monotonic seconds when leaving began."""

    parts: tuple[LeavingPart, ...] = ()
    at: float = field(default_factory=time.monotonic)

    @property
    def announced_s(self) -> float:
        """Estimated seconds, including the margin."""
        return CLOSING_S + (1 + MARGIN) * sum(part.seconds for part in self.parts)

    @property
    def exchange_limit_s(self) -> float:
        """Seconds after which an exchange under way is abandoned."""
        expected = sum(part.seconds for part in self.parts if part.name == "exchange")
        return min(EXCHANGE_LEAST_S + 2 * expected, EXCHANGE_LEAST_S + EXCHANGE_MOST_S)

    def summary(self) -> str:
        """Return the plan as one line: `about 23 s: exchange 6 s, checkpoint 12 s`."""
        named = [f"{part.name} {duration(part.seconds)}" for part in self.parts if part.seconds >= SHOWN_S]
        about = f"about {duration(self.announced_s)}"
        return f"{about}: {', '.join(named)}" if named else about

    def why(self) -> str:
        """Return every part with its reason, for the journal."""
        return "; ".join(f"{part.name} {part.seconds:.1f} s: {part.why}" for part in self.parts)

    def report(self) -> LeavingStatus:
        """Return the plan for `peer status`."""
        return LeavingStatus(
            told=self.summary(),
            announced_s=round(self.announced_s, 1),
            parts={part.name: round(part.seconds, 1) for part in self.parts},
            since_s=round(time.monotonic() - self.at, 1),
            why=self.why(),
        )


def leaving_plan(peer: DaemonPeer | None) -> LeavingPlan:
    """Return the plan for a peer that trains. `peer` None: training has not begun, and nothing has to be saved."""
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
    """Return the time of the exchange under way: the remaining bytes divided by the measured rate."""
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
    """Return the time until the trainer's step under way ends."""
    return LeavingPart("step", boundary_s, "the trainer ends its step; this is the longest of the last")


def checkpoint_part(checkpointer: Checkpointer) -> LeavingPart:
    """Return the time of the last checkpoint, and of another one that is still being written."""
    pace = checkpointer.pace
    if checkpointer.completing:
        return LeavingPart("checkpoint", 2 * pace.write_s, f"{pace.write_s_source}; another one is being completed")
    return LeavingPart("checkpoint", pace.write_s, pace.write_s_source)
