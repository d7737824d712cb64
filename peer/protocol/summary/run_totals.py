"""What a run's peers say together. Their numbers are claims, so one liar moves a median little and a sum by a bound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from peer.protocol.messages import Status
from peer.protocol.schedule import lower_median
from peer.protocol.summary.book import HeldSummary
from peer.protocol.summary.loss_history import LossHistory
from peer.protocol.summary.values import PeerSummary
from peer.protocol.summary.weighing import mean, most_of, quartiles, voices

LOSS_WINDOW = 8
"""Evaluations of so many rounds before the newest ones count together: peers evaluate in different rounds."""


class RunTotals:
    """The run's totals. It remembers what tokens a peer can have processed at most."""

    def __init__(self) -> None:
        self._fastest: float | None = None
        """Tokens a second that anybody's claim is bounded by, as peers last told."""

    def report(self, live: list[HeldSummary], tokens: Iterable[int], age_s: float | None) -> dict[str, Any]:
        """Return the totals, JSON-able. `live`: those that count in what the run does now. `tokens`: what each peer has
        processed that ever took part. `age_s`: how long the run has gone on; None: that is not known.
        `participation_of`, `spread_of`: the live peers that the number is of; those that said none are left out."""
        rates = voices([(o.block, o.summary.tokens_per_s) for o in live if o.summary.status is Status.TRAINING])
        self._fastest = most_of(rates) or self._fastest
        most_rate = math.inf if self._fastest is None else self._fastest
        most = most_rate * age_s if age_s is not None else math.inf
        judged = voices([(one.block, one.summary.loss) for one in live])
        losses = quartiles(judged)
        said = voices([(one.block, one.summary.participation) for one in live])
        participation = mean(said)
        return {
            "peers": len(live),
            "tokens": int(sum(min(one, most) for one in tokens)),
            "tokens_per_s": round(sum(min(rate.value, most_rate) for rate in rates), 1),
            "participation": None if participation is None else round(participation, 4),
            "participation_of": len(said),
            "spread": None if losses is None else round(losses.high - losses.low, 5),
            "spread_of": len(judged),
        }


def note_losses(history: LossHistory, live: list[HeldSummary], furthest: int, now: float) -> None:
    """Add the losses that peers say now to the run's history. `furthest`: the furthest round that can be."""
    told = [one for one in live if one.summary.loss is not None and one.summary.loss_round <= furthest]
    round_ = lower_median(one.summary.loss_round for one in told)
    if round_ is None:
        return
    near = [one for one in told if abs(one.summary.loss_round - round_) <= LOSS_WINDOW]
    said = voices([(one.block, one.summary.loss) for one in near])
    if (losses := quartiles(said)) is not None:
        history.note(now, round_, losses, len(said))


def line_of(summary: PeerSummary, state: str, round_: int, seen_s_ago: float) -> dict[str, Any]:
    """Return what one peer says, JSON-able. `state`: its status, or `silent`; `round_`: its round, if it can be."""
    return {
        "peer_id": summary.peer_id,
        "state": state,
        "round": round_,
        "tokens": summary.tokens,
        "tokens_per_s": round(summary.tokens_per_s, 1),
        "loss": None if summary.loss is None else round(summary.loss, 5),
        "exchanges": summary.exchanged,
        "solo": summary.solo,
        "refused": summary.refused,
        "missed": summary.missed,
        "due": summary.due,
        "bytes_up": summary.bytes_up,
        "bytes_down": summary.bytes_down,
        "device": summary.device,
        "seen_s_ago": round(seen_s_ago, 1),
        "version": summary.version,
    }
