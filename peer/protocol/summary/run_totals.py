"""Statistics of a run over the summaries of its peers: medians, means and quartiles, but no sums.

Each summary is a claim of its peer, and another key costs nothing. A sum would grow with every invented key."""

from __future__ import annotations

from dataclasses import dataclass

from peer.protocol.messages import Status
from peer.protocol.summary.book import HeldSummary
from peer.protocol.summary.loss_history import LossHistory
from peer.protocol.summary.values import PeerSummary
from peer.protocol.summary.weighing import Voice, lower_median, mean, quartiles, voices

LOSS_WINDOW = 8
"""Evaluations up to this many rounds apart count together, because peers evaluate in different rounds."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Statistics over the live peers. None of them is a sum of claims, because keys are free and a sum would grow with
    each key."""

    peers: int
    """Number of keys."""
    networks: int
    """Number of address blocks."""
    median_tokens_per_s: float | None
    participation: float | None
    participation_of: int
    """Number of live peers in the mean `participation`. Peers for which no round was due yet are left out."""
    spread: float | None
    """Difference of the quartiles of the losses, in nats per token."""
    spread_of: int
    """Number of live peers whose losses `spread` compares."""


@dataclass(frozen=True, slots=True)
class PeerLine:
    """The numbers of one peer, according to the peer."""

    peer_id: str
    state: str
    """Status of the peer, or `silent`."""
    round: int
    tokens: int
    tokens_per_s: float
    loss: float | None
    """On the hold-out, in nats per token."""
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
    """Return the statistics over the live peers."""
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
    """Return a low estimate of the tokens per second of all live peers: the lower median of those that train, times
    their votes. All keys of a block share one vote, so more keys do not increase it."""
    rates = _rates(live)
    return (lower_median(rates) or 0.0) * sum(voice.weight for voice in rates)


def _rates(live: list[HeldSummary]) -> list[Voice]:
    return voices([(one.block, one.summary.tokens_per_s) for one in live if one.summary.status is Status.TRAINING])


def note_losses(history: LossHistory, live: list[HeldSummary], furthest: int, now: float) -> None:
    """Add the present losses to the run's history. `furthest`: the furthest possible round."""
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
    """Return the numbers of one peer. `state`: its status, or `silent`. `round_`: its round, limited to the
    possible."""
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
