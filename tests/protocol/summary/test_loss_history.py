from __future__ import annotations

import itertools
import json

from peer.observe.status.codec import to_json
from peer.protocol.summary.loss_history import LossHistory
from peer.protocol.summary.weighing import Quartiles


def losses(at: float) -> Quartiles:
    return Quartiles(at - 0.1, at, at + 0.1)


def test_a_later_word_on_a_round_replaces_the_earlier_and_keeps_its_time() -> None:
    history = LossHistory()
    history.note(100.0, 5, losses(3.0), 2)
    history.note(160.0, 5, losses(2.9), 6)
    assert to_json(history.report()) == [{"t": 100.0, "round": 5, "median": 2.9, "low": 2.8, "high": 3.0, "count": 6}]
    history.note(165.0, 5, losses(9.0), 5)
    assert history.points[0].median == 2.9, "a peer has left"
    history.note(170.0, 4, losses(9.0), 6)
    assert len(history.points) == 1


def test_a_long_run_keeps_its_beginning_and_its_end_within_the_bound() -> None:
    history = LossHistory(most=64)
    for round_ in range(10_000):
        history.note(float(round_), round_, losses(5.0), 3)
    rounds = [point.round for point in history.points]
    assert len(rounds) <= 64
    assert rounds[0] == 0
    assert rounds[-1] > 9_700
    steps = {after - before for before, after in itertools.pairwise(rounds)}
    assert len(steps) == 1, "evenly spread"


def test_kept_points_go_on() -> None:
    history, after = LossHistory(most=8), LossHistory(most=8)
    for round_ in range(100):
        history.note(float(round_), round_, losses(5.0), 3)
    kept = json.loads(json.dumps([[p.t, p.round, p.median, p.low, p.high, p.count] for p in history.points]))
    after.restore(kept)
    assert after.points == history.points
