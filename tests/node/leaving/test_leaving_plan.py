"""The plan of leaving: its times follow from measurements, and it is formatted for people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.exchange.throughput import TransferLeft
from peer.node.leaving.plan import (
    CLOSING_S,
    EXCHANGE_LEAST_S,
    EXCHANGE_MOST_S,
    MARGIN,
    LeavingPart,
    LeavingPlan,
    checkpoint_part,
    exchange_part,
    leaving_plan,
    step_part,
)
from peer.observe.status.codec import to_json
from peer.state.save_pace import SavePace


def saving(completing: bool = False) -> Any:
    pace = SavePace(10**9, 15.0, lambda: 2.0)
    pace.record_write(0.0, 10.0, 10**9)
    return SimpleNamespace(pace=pace, completing=completing)


def test_the_rest_of_an_exchange_is_its_bytes_over_its_rate() -> None:
    assert exchange_part(False, TransferLeft(10, 1.0, 10.0)).seconds == 0.0
    part = exchange_part(True, TransferLeft(30_000_000, 5e6, 6.0))
    assert part == LeavingPart("exchange", 6.0, "30.0 MB are left at 5.00 MB/s")


@pytest.mark.parametrize("left", [None, TransferLeft(30_000_000, 0.0, 0.0)])
def test_an_exchange_of_which_no_rate_is_known_gets_the_least(left: TransferLeft | None) -> None:
    part = exchange_part(True, left)
    assert (part.seconds, part.why) == (EXCHANGE_LEAST_S, "no rate is known of it")


def test_an_exchange_that_would_take_too_long_is_given_up_soon_and_says_so() -> None:
    part = exchange_part(True, TransferLeft(220_000_000, 1.25e6, 176.0))
    assert part.seconds == EXCHANGE_LEAST_S
    assert part.why == "given up, as 220.0 MB are left at 1.25 MB/s: 2 min, and a leave waits 30 s"


def test_a_checkpoint_that_is_being_completed_comes_first() -> None:
    assert checkpoint_part(saving()).seconds == pytest.approx(10.0)
    both = checkpoint_part(saving(completing=True))
    assert both.seconds == pytest.approx(20.0)
    assert both.why == "1.00 GB at 100.0 MB/s, by the last checkpoints; another one is being completed"


def test_the_sum_is_announced_with_a_margin_and_small_parts_are_not_named() -> None:
    parts = (exchange_part(True, TransferLeft(6, 1.0, 6.0)), step_part(0.2), LeavingPart("checkpoint", 10.0, "so"))
    plan = LeavingPlan(parts, at=0.0)
    assert plan.announced_s == pytest.approx(CLOSING_S + (1 + MARGIN) * 16.2)
    assert plan.summary() == "about 22 s: exchange 6 s, checkpoint 10 s"
    report = to_json(plan.report())
    assert report["parts"] == {"exchange": 6.0, "step": 0.2, "checkpoint": 10.0}
    assert report["since_s"] > 0
    assert "checkpoint 10.0 s: so" in report["why"]


def test_an_exchange_gets_twice_what_is_expected_within_bounds() -> None:
    assert LeavingPlan().exchange_limit_s == EXCHANGE_LEAST_S
    assert LeavingPlan((LeavingPart("exchange", 6.0, ""),)).exchange_limit_s == EXCHANGE_LEAST_S + 12.0
    assert LeavingPlan((LeavingPart("exchange", 29.0, ""),)).exchange_limit_s == EXCHANGE_LEAST_S + EXCHANGE_MOST_S


def test_before_training_there_is_nothing_but_closing() -> None:
    assert leaving_plan(None).summary() == "about 2 s"


def test_all_parts_of_a_peer_that_trains() -> None:
    evaluations = SimpleNamespace(last_s=lambda moving: 3.0 * moving, reason=lambda moving: "measured")
    parts = SimpleNamespace(
        loop=SimpleNamespace(evaluations=evaluations, exchanging=True),
        strategy=SimpleNamespace(transfers=SimpleNamespace(left=lambda: TransferLeft(60, 10.0, 6.0))),
    )
    plan = leaving_plan(cast(Any, SimpleNamespace(parts=parts, checkpointer=saving())))
    assert {part.name: round(part.seconds) for part in plan.parts} == {
        "exchange": 6,
        "step": 2,
        "checkpoint": 10,
        "evaluation": 3,
    }
