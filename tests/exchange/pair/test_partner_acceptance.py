"""The acceptance of partners' params: which checks it makes, journals and reports."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.exchange.pair.acceptance import PartnerAcceptance
from peer.exchange.pair.offer import PartnerOffer
from peer.observe import events
from peer.observe.metrics import VERDICTS
from peer.observe.status.codec import to_json
from peer.ports.memory_store import ExchangeStores
from peer.ports.trainer import WorkSnapshot
from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.pair.probe_verdict import ProbeVerdict

GOOD = ProbeVerdict(True, "", 0.1, -0.01, 0.05, windows="16 windows from anywhere in the run's data")
BAD = ProbeVerdict(False, "it is worse", 0.1, 0.2, 0.05, windows="16 windows from anywhere in the run's data")
NONE = "every volunteer trains on texts of its own"


class Check:
    """A `ParamsCheck` with given verdicts."""

    def __init__(self, *answers: ProbeVerdict | str) -> None:
        self.answers = list(answers)

    async def judge(self, offer: PartnerOffer, taken: float) -> ProbeVerdict | str:
        return self.answers.pop(0)


class Judged:
    """A `PartnerAcceptance`, and the events that it journaled."""

    def __init__(self, *answers: ProbeVerdict | str, asked: str = "check", unchecked: str = "") -> None:
        self.journal: list[events.PartnerJudged] = []
        self.judge = PartnerAcceptance(
            asked,
            cast(Any, Check(*answers)),
            inline,
            ExchangeStores().partners,
            lambda peer, why: pytest.fail(f"{peer} is blamed: {why}"),
            lambda event: self.journal.append(cast(events.PartnerJudged, event)),
            unchecked,
        )

    def offer(self, round_: int, away: float = 1.0) -> None:
        work = WorkSnapshot(
            key=RoundKey(round_, 0), params=torch.ones(4), steps=1, tokens=64, processed=64, loss=1.0, seconds=1.0
        )
        params = torch.full((4,), 1 + away)
        asyncio.run(self.judge.judge(PartnerOffer(PeerId("b"), work, 1.0, torch.zeros(4), params, 64)))


def test_the_report_counts_all_and_tells_the_last_refusal() -> None:
    judged = Judged(GOOD, GOOD, BAD, "the trainer did not answer in time")
    for round_, away in enumerate((1.0, 50.0, 1.0, 1.0)):
        judged.offer(round_, away)
    assert [event.verdict for event in judged.journal] == ["taken", "clipped", "refused", "taken"]
    assert [event.windows for event in judged.journal] == [GOOD.windows] * 3 + [""]
    report = to_json(judged.judge.report())
    assert report == {
        "asked": "check",
        "taken": 2,
        "clipped": 1,
        "refused": 1,
        "unchecked": 1,
        "why_unchecked": "the trainer did not answer in time",
        "last_refused": {"peer_id": "b", "round": 2, "reason": "it is worse"},
    }
    assert report.keys() > set(VERDICTS), "the metrics read them"


def test_a_run_without_common_data_asks_no_trainer_and_says_so_once() -> None:
    judged = Judged(unchecked=NONE)
    for round_ in range(3):
        judged.offer(round_)
    assert [event.unchecked for event in judged.journal] == [NONE, "", ""]
    assert all(math.isnan(event.gained) for event in judged.journal)
    report = to_json(judged.judge.report())
    assert (report["taken"], report["unchecked"], report["why_unchecked"]) == (3, 3, NONE)


def test_a_passing_reason_is_journalled_each_time_and_forgotten_with_the_next_check() -> None:
    judged = Judged("1 of 4 shards is here", "2 of 4 shards are here", GOOD)
    for round_ in range(3):
        judged.offer(round_)
    assert [event.unchecked for event in judged.journal] == ["1 of 4 shards is here", "2 of 4 shards are here", ""]
    assert to_json(judged.judge.report())["why_unchecked"] == ""


def test_nothing_is_unchecked_where_no_check_is_asked_for() -> None:
    judged = Judged(asked="clip")
    judged.offer(0)
    assert to_json(judged.judge.report()) == {
        "asked": "clip",
        "taken": 1,
        "clipped": 0,
        "refused": 0,
        "unchecked": 0,
        "why_unchecked": "",
        "last_refused": None,
    }
