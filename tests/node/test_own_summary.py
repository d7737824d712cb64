"""A daemon's summary must contain the numbers of its journal and trainer, whatever their values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.node.own_summary import SummarySource
from peer.observe import events
from peer.observe.totals import Totals
from peer.protocol.messages import Status
from peer.signed_summary import unseal_summary
from tests.support.signed_receipts import RUN, Signing
from tests.support.summaries import NOW, SetClock


def source_of(me: Signing, totals: Totals, rate: float = 123.0) -> SummarySource:
    local = SimpleNamespace(me=me.id, run_id=RUN, clock=SetClock(), identity=me.identity)
    return SummarySource(
        cast(Any, SimpleNamespace(local=local)),
        cast(
            Any,
            SimpleNamespace(counters=lambda: SimpleNamespace(tokens=777), progress=SimpleNamespace(tokens_per_s=rate)),
        ),
        cast(Any, SimpleNamespace(totals=totals)),
        cast(Any, SimpleNamespace(round=9, announced=lambda why: Status.TRAINING)),
        cast(Any, SimpleNamespace(blocked_reason=lambda: "")),
    )


def test_it_tells_what_the_journal_counts() -> None:
    me = Signing()
    rounds = {"due": 8, "exchanged": 5, "solo": 2, "missed": 1}
    source = source_of(me, Totals(rounds=rounds, bytes_sent=10, bytes_received=20, val_loss=((8, 3.5, 5.0),)))
    source.on_event(events.TrainerStarted(device="cuda:0", reason="it is there"), NOW)
    told = unseal_summary(source.sealed(()), RUN)
    assert (told.peer_id, told.issued_at, told.round, told.tokens) == (me.id, NOW, 9, 777)
    assert (told.due, told.exchanged, told.solo, told.refused, told.missed) == (8, 5, 2, 0, 1)
    assert (told.bytes_up, told.bytes_down, told.loss, told.loss_round) == (10, 20, 3.5, 8)
    assert (told.device, told.tokens_per_s) == ("cuda", 123.0)


@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_numbers_that_are_none_are_left_out(wild: float) -> None:
    source = source_of(Signing(), Totals(val_loss=((8, wild, wild),)), rate=wild)
    told = unseal_summary(source.sealed(()), RUN)
    assert (told.loss, told.tokens_per_s) == (None, 0.0)


def test_its_first_exchange_and_its_first_loss_are_news() -> None:
    me = Signing()
    states = [
        source_of(me, totals).state()
        for totals in (Totals(), Totals(val_loss=((1, 3.0, 4.0),)), Totals(rounds={"exchanged": 1}))
    ]
    assert len(set(states)) == 3
