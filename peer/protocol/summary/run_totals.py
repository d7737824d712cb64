"""What a run's peers say together. Their numbers are claims, so there are medians of them, and no sums."""

from __future__ import annotations

from dataclasses import dataclass

from peer.protocol.messages import Status
from peer.protocol.summary.book import HeldSummary
from peer.protocol.summary.loss_history import LossHistory
from peer.protocol.summary.values import PeerSummary
from peer.protocol.summary.weighing import Voice, lower_median, mean, quartiles, voices

LOSS_WINDOW = 8
"""Evaluations of so many rounds before the newest ones count together: peers evaluate in different rounds."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """What the live peers say together. Nothing in it is a sum of claims: keys are free, and a sum grows with each."""

    peers: int
    """Keys."""
    networks: int
    """Their address blocks."""
    median_tokens_per_s: float | None
    participation: float | None
    participation_of: int
    """The live peers that the number is of; those that said none are left out."""
    spread: float | None
    """Between the quartiles of the losses, nats a token."""
    spread_of: int
    """As `participation_of`."""


@dataclass(frozen=True, slots=True)
class PeerLine:
    """What one peer says."""

    peer_id: str
    state: str
    """Its status, or `silent`."""
    round: int
    tokens: int
    tokens_per_s: float
    loss: float | None
    """On the hold-out, nats a token."""
    exchanges: int
    solo: int
    refused: int
    missed: int
    due: int
    bytes_up: int
    bytes_down: int
    device: str
    seen_s_ago: float
    version: str


def totals_of(live: list[HeldSummary]) -> RunTotals:
    """Return what the live peers say together."""
    rates = quartiles(_rates(live))
    judged = voices([(one.block, one.summary.loss) for one in live])
    losses = quartiles(judged)
    said = voices([(one.block, one.summary.participation) for one in live])
    participation = mean(said)
    return RunTotals(
        peers=len(live),
        networks=len({one.block for one in live}),
        median_tokens_per_s=None if rates is None else round(rates.median, 1),
        participation=None if participation is None else round(participation, 4),
        participation_of=len(said),
        spread=None if losses is None else round(losses.high - losses.low, 5),
        spread_of=len(judged),
    )


def speed_of(live: list[HeldSummary]) -> float:
    """Return a low estimate of the tokens a second of all live peers: the lower median of those that train, times
    their voices. A key more in a block is no voice more."""
    rates = _rates(live)
    return (lower_median(rates) or 0.0) * sum(voice.weight for voice in rates)


def _rates(live: list[HeldSummary]) -> list[Voice]:
    return voices([(one.block, one.summary.tokens_per_s) for one in live if one.summary.status is Status.TRAINING])


def note_losses(history: LossHistory, live: list[HeldSummary], furthest: int, now: float) -> None:
    """Add the losses that peers say now to the run's history. `furthest`: the furthest round that can be."""
    told = [one for one in live if one.summary.loss is not None and one.summary.loss_round <= furthest]
    middle = lower_median(voices([(one.block, float(one.summary.loss_round)) for one in told]))
    if middle is None:
        return
    round_ = int(middle)
    near = [one for one in told if abs(one.summary.loss_round - round_) <= LOSS_WINDOW]
    said = voices([(one.block, one.summary.loss) for one in near])
    if (losses := quartiles(said)) is not None:
        history.note(now, round_, losses, len(said))


def line_of(summary: PeerSummary, state: str, round_: int, seen_s_ago: float) -> PeerLine:
    """Return what one peer says. `state`: its status, or `silent`; `round_`: its round, if it can be."""
    return PeerLine(
        peer_id=summary.peer_id,
        state=state,
        round=round_,
        tokens=summary.tokens,
        tokens_per_s=round(summary.tokens_per_s, 1),
        loss=None if summary.loss is None else round(summary.loss, 5),
        exchanges=summary.exchanged,
        solo=summary.solo,
        refused=summary.refused,
        missed=summary.missed,
        due=summary.due,
        bytes_up=summary.bytes_up,
        bytes_down=summary.bytes_down,
        device=summary.device,
        seen_s_ago=round(seen_s_ago, 1),
        version=summary.version,
    )
