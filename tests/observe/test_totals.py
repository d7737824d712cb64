import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.observe import events
from peer.observe.event_codec import DamagedLine, encode
from peer.observe.totals import KEEP, KEEP_LIVE, Ledger, Totals, fold, ledger, read_totals, replay, rotated_path


def ended(fragment=0, outcome="exchanged", applied=10, dropped=0, upto=1, sent=7, received=8):
    return events.RoundEnded(
        round=0,
        fragment=fragment,
        outcome=outcome,
        partner="p",
        reason="",
        applied=applied,
        dropped=dropped,
        upto=upto,
        steps=3,
        bytes_sent=sent,
        bytes_received=received,
        seconds=0.5,
    )


def summed(*timed) -> Totals:
    totals = Totals()
    for event, t in timed:
        totals = fold(totals, event, t)
    return totals


def test_rounds_work_and_bytes_are_summed_by_hand():
    totals = summed(
        (events.RoundDue(round=0, fragment=0, deadline=1.0), 1.0),
        (ended(applied=100, dropped=5, upto=10), 2.0),
        (events.RoundDue(round=1, fragment=1, deadline=1.0), 3.0),
        (ended(fragment=1, outcome="solo", applied=40, upto=12, sent=0, received=0), 4.0),
        (ended(outcome="refused", applied=1, upto=20, sent=0, received=0), 5.0),
        (events.Dropped(fragment=1, dropped=9, upto=30, reason=""), 6.0),
        (events.SatOut(round=2, fragment=0, reason=""), 7.0),
        (events.RoundMissed(round=2, fragment=0, reason=""), 7.0),
        (events.Skipped(from_round=3, to_round=8, reason=""), 7.0),
        (events.PartnerFailed(peer="p", round=0, code="lost", reason=""), 8.0),
        (events.TrainerDeath(cause="SIGKILL"), 8.0),
        (events.StateFetched(donor="d", round=0, bytes=1000, seconds=1.0), 9.0),
    )
    counts = {"due": 2, "exchanged": 1, "solo": 1, "refused": 1, "missed": 1, "sat_out": 1, "skipped": 5}
    assert dict(totals.rounds) == counts
    assert (totals.applied, totals.dropped) == (141, 14)
    assert dict(totals.upto) == {0: 20, 1: 30}
    assert (totals.bytes_sent, totals.bytes_received, totals.state_bytes) == (7, 8, 1000)
    assert (totals.steps, totals.seconds_exchanging) == (9, 1.5)
    assert (totals.partner_failures, totals.trainer_deaths) == (1, 1)
    assert totals.last_at == 9.0


def test_live_from_training_to_leaving():
    start = events.Started(peer_id="p", run_id="r", version="v", resumed="")
    totals = summed((start, 1.0), (events.TrainingBegan(round=0), 5.0), (events.Leaving(reason=""), 9.0))
    totals = fold(totals, events.Left(exit_code=0), 11.0)
    assert (totals.joined_at, totals.live, totals.live_since) == (5.0, ((5.0, 9.0),), None)


def test_a_kill_ends_the_live_interval_with_the_last_event():
    start = events.Started(peer_id="p", run_id="r", version="v", resumed="")
    before = summed((start, 1.0), (events.TrainingBegan(round=0), 5.0), (ended(), 8.0))
    assert before.live_since == 5.0
    after = fold(fold(before, start, 100.0), events.TrainingBegan(round=1), 110.0)
    assert (after.joined_at, after.live, after.live_since, after.starts) == (5.0, ((5.0, 8.0),), 110.0, 2)


def test_lists_are_bounded_and_keep_both_ends():
    totals = Totals()
    for n in range(2 * KEEP + 100):
        totals = fold(totals, events.Evaluated(round=n, loss=float(n), bits_per_byte=0.0), float(n))
    assert len(totals.val_loss) == 2 * KEEP
    assert totals.val_loss[0][0] == 0
    assert totals.val_loss[KEEP - 1][0] == KEEP - 1
    assert totals.val_loss[-1] == (2 * KEEP + 99, 2.0 * KEEP + 99, 0.0)
    for n in range(KEEP_LIVE + 5):
        totals = fold(totals, events.TrainingBegan(round=n), float(n))
        totals = fold(totals, events.Leaving(reason=""), n + 0.5)
    assert len(totals.live) == KEEP_LIVE
    assert totals.live[-1] == (KEEP_LIVE + 4.0, KEEP_LIVE + 4.5)
    assert len(encode(events.Carried(totals=totals.to_json()), 0.0)) < 2**20


def test_carried_replaces_the_sums():
    known = summed((ended(), 1.0), (events.Evaluated(round=1, loss=2.5, bits_per_byte=1.0), 2.0))
    other = summed((ended(applied=10**30), 1.0))
    assert fold(other, events.Carried(totals=json.loads(json.dumps(known.to_json()))), 9.0) == known


def test_a_loss_that_is_not_a_number_survives():
    totals = summed((events.Evaluated(round=1, loss=math.nan, bits_per_byte=math.inf), 1.0))
    again = Totals.from_json(json.loads(json.dumps(totals.to_json(), allow_nan=False)))
    assert again.val_loss[0][0] == 1
    assert math.isnan(again.val_loss[0][1])


@pytest.mark.parametrize(
    "body",
    [
        {"applied": "1"},
        {"applied": True},
        {"rounds": [1]},
        {"upto": {"x": 1}},
        {"upto": {"0": 0.5}},
        {"val_loss": [[1]]},
        {"val_loss": 3},
        {"live": [[1, "x"]]},
        {"last_at": []},
    ],
)
def test_damaged_totals_are_typed(body):
    with pytest.raises(DamagedLine):
        Totals.from_json(body)


def test_what_an_older_version_did_not_carry_is_zero():
    assert Totals.from_json({"applied": 3, "from_the_future": 1}) == Totals(applied=3)


def test_replay_reads_both_parts_and_counts_damage(tmp_path):
    path = tmp_path / "journal"
    first, second = summed((ended(upto=5), 1.0)), summed((ended(upto=5), 1.0), (ended(upto=9), 2.0))
    rotated_path(path).write_bytes(encode(ended(upto=5), 1.0) + b"torn\n")
    assert replay(path) == (first, 1)
    carried = encode(events.Carried(totals=first.to_json()), 2.0)
    path.write_bytes(carried + encode(ended(upto=9), 2.0))
    assert replay(path) == (second, 1)
    damaged = b'{"t":1.0,"kind":"totals","totals":{"applied":"x"}}\n'
    path.write_bytes(damaged + encode(ended(upto=9), 2.0))
    assert replay(path) == (second, 2), "the earlier part stands in for damaged sums"
    rotated_path(path).unlink()
    path.write_bytes(carried + encode(ended(upto=9), 2.0))
    assert read_totals(path) == second


def test_a_missing_journal_sums_to_zero(tmp_path):
    assert read_totals(tmp_path / "none") == Totals()


def test_ledger_by_hand():
    # Two fragments of 100 and 10 elements; 50 tokens in all; 30 and 40 of them are covered.
    totals = summed((ended(fragment=0, applied=3000, upto=30), 1.0), (ended(1, "solo", 350, 50, 40), 2.0))
    book = ledger(totals, 50, (30, 40), (100, 10))
    assert book == Ledger(processed=5500, applied=3350, dropped=50, outstanding=2100)
    assert book.imbalance == 0


def test_a_kill_between_journal_and_base_counter_is_balanced():
    totals = summed((ended(applied=3000, upto=30), 1.0))
    assert ledger(totals, 50, (0,), (100,)) == Ledger(5000, 3000, 0, 2000)
    assert ledger(totals, 50, (0,), (100,)).imbalance == 0


def test_lost_and_doubled_work_unbalance_it():
    assert ledger(summed((ended(applied=2999, upto=30), 1.0)), 50, (30,), (100,)).imbalance == 1
    assert ledger(summed((ended(applied=3000, upto=30), 1.0)), 50, (31,), (100,)).imbalance == 100
    twice = summed((ended(applied=3000, upto=30), 1.0), (ended(applied=3000, upto=30), 1.0))
    assert ledger(twice, 50, (30,), (100,)).imbalance == -3000


@given(st.data())
def test_the_ledger_balances_over_any_history_of_rounds_and_kills(data):
    elements = data.draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=4))
    base, tokens, totals = [0] * len(elements), 0, Totals()
    for _ in range(data.draw(st.integers(0, 20))):
        tokens += data.draw(st.integers(0, 10**12))
        fragment = data.draw(st.integers(0, len(elements) - 1))
        work = (tokens - max(base[fragment], totals.upto.get(fragment, 0))) * elements[fragment]
        applied = data.draw(st.integers(0, work))
        totals = fold(totals, ended(fragment, applied=applied, dropped=work - applied, upto=tokens), 1.0)
        if data.draw(st.booleans()):  # else killed before the counter moved
            base[fragment] = tokens
    assert ledger(totals, tokens, base, elements).imbalance == 0
