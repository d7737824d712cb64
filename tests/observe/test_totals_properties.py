from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.observe import events
from peer.observe.event_codec import MAX_INT, DamagedLine, decode, encode
from peer.observe.journal import Journal
from peer.observe.totals import Totals, fold, read_totals

counts, times = st.integers(0, 10**20), st.floats(0, 1e12)
totals = st.builds(
    Totals,
    rounds=st.dictionaries(st.sampled_from(["due", "solo", "exchanged", "missed"]), counts),
    applied=counts,
    dropped=counts,
    upto=st.dictionaries(st.integers(0, 100), counts, max_size=4),
    steps=counts,
    seconds_exchanging=times,
    val_loss=st.lists(st.tuples(counts, times, times), max_size=4).map(tuple),
    joined_at=st.none() | times,
    live=st.lists(st.tuples(times, times), max_size=4).map(tuple),
    live_since=st.none() | times,
    last_at=st.none() | times,
)


@given(totals)
def test_sums_are_carried_exactly(before: Totals) -> None:
    line = encode(events.Carried(totals=before.to_json()), 1.0)
    json.loads(line, parse_constant=pytest.fail)
    event, _ = decode(line)
    assert fold(Totals(applied=7), event, 1.0) == before


@pytest.mark.parametrize("digits", [40, 4300])
def test_an_integer_that_no_sum_could_be_printed_with_is_damage(tmp_path: Path, digits: int) -> None:
    line = b'{"t":1.0,"kind":"dropped","fragment":0,"dropped":' + b"9" * digits + b',"upto":1,"reason":""}\n'
    with pytest.raises(DamagedLine):
        decode(line)
    path = tmp_path / "journal"
    path.write_bytes(line + line)
    journal = Journal(path, lambda: 2.0, limit_bytes=100)
    journal.append(events.Leaving(reason="x" * 200))  # rotates: the sums are written
    journal.close()
    assert journal.damaged == 2
    assert read_totals(path).dropped == 0
    assert MAX_INT > 10**38


def test_no_time_of_a_transfer_is_none_and_not_for_ever() -> None:
    ended = {
        "t": 1.0, "kind": "round_ended", "round": 1, "fragment": 0, "outcome": "solo", "partner": "", "reason": "",
        "applied": 1, "dropped": 0, "upto": 1, "steps": 1, "bytes_sent": 0, "bytes_received": 0, "seconds": None,
    }  # fmt: skip
    after = fold(Totals(seconds_exchanging=2.0), *decode(json.dumps(ended).encode()))
    assert after.seconds_exchanging == 2.0


def test_times_that_are_not_finite_are_not_carried_on() -> None:
    body = (
        '{"joined_at":Infinity,"live_since":NaN,"last_at":1e999,"seconds_exchanging":NaN,"live":[[1,2],[1,Infinity]]}'
    )
    after = Totals.from_json(json.loads(body))
    assert (after.joined_at, after.live_since, after.last_at) == (None, None, None)
    assert after.seconds_exchanging == 0.0
    assert after.live == ((1.0, 2.0),)
    assert math.isfinite(after.seconds_exchanging)
