import dataclasses
import json
import math
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.codes import AnyCode, Code
from peer.observe import events
from peer.observe.event_codec import MAX_LINE, MAX_TEXT, DamagedLine, decode, encode, read_lines
from peer.observe.totals import Totals, fold

KINDS = [kind for kind in events.KINDS.values() if kind is not events.Carried]
VALUES = {
    bool: st.booleans(),
    int: st.integers(0, 10**24),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=50),
    events.Outcome: st.sampled_from(events.OUTCOMES),
    AnyCode: st.sampled_from(Code) | st.text(max_size=50),
}


def an_event(kind: type[events.Event]) -> st.SearchStrategy[events.Event]:
    # Names as the module sees them: `bytes` and `round` are also names of fields.
    hints = {f.name: eval(f.type, vars(events)) for f in dataclasses.fields(kind)}
    return st.builds(kind, **{name: VALUES[hint] for name, hint in hints.items()})


any_event = st.sampled_from(KINDS).flatmap(an_event)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@given(data=st.data(), t=st.floats(0, 1e12))
def test_every_kind_survives_the_line(kind, data, t):
    event = data.draw(an_event(kind))
    line = encode(event, t)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == (event, t)


def test_kinds_are_named_once_and_all_are_known():
    assert len(events.KINDS) == len(events.Event.__subclasses__())
    assert {"round_ended", "totals", "left"} <= events.KINDS.keys()


def test_fields_are_documented_where_their_name_does_not_say_it_all():
    assert all(kind.__doc__ for kind in events.KINDS.values())
    assert "deadline" in typing.get_type_hints(events.RoundDue)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_still_json(loss):
    line = encode(events.Evaluated(round=1, loss=loss, bits_per_byte=1.0), 5.0)
    assert json.loads(line, parse_constant=pytest.fail)["loss"] is None
    event, _ = decode(line)
    assert isinstance(event, events.Evaluated)
    assert math.isnan(event.loss)


def test_a_strangers_reason_is_cut():
    event, _ = decode(encode(events.Leaving(reason="x" * 10**6), 0.0))
    assert event == events.Leaving(reason="x" * MAX_TEXT)


def test_fields_of_a_newer_version_are_ignored():
    body = json.loads(encode(events.Left(exit_code=3), 1.0)) | {"why": "new"}
    assert decode(json.dumps(body).encode()) == (events.Left(exit_code=3), 1.0)


GOOD = json.loads(encode(events.Dropped(fragment=1, dropped=2, upto=3, reason="r"), 1.0))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"t":1,"kind":"left","exit_code":' + b"9" * 5000 + b"}",
        json.dumps(GOOD | {"kind": "from_the_future"}).encode(),
        json.dumps(GOOD | {"kind": ["left"]}).encode(),
        json.dumps(GOOD | {"t": None}).encode(),
        json.dumps(GOOD | {"t": "now"}).encode(),
        json.dumps(GOOD | {"t": 10**400}).encode(),
        json.dumps(GOOD | {"dropped": 1.5}).encode(),
        json.dumps(GOOD | {"dropped": True}).encode(),
        json.dumps(GOOD | {"dropped": "1"}).encode(),
        json.dumps(GOOD | {"reason": 1}).encode(),
        json.dumps({k: v for k, v in GOOD.items() if k != "upto"}).encode(),
        b'{"t":1,"kind":"totals","totals":[]}',
    ],
)
def test_damage_is_typed(line):
    with pytest.raises(DamagedLine):
        decode(line)


def test_an_outcome_is_one_of_three():
    good = encode(
        events.RoundEnded(
            round=1,
            fragment=0,
            outcome="solo",
            partner="",
            reason="",
            applied=1,
            dropped=0,
            upto=1,
            steps=1,
            bytes_sent=0,
            bytes_received=0,
            seconds=0.0,
        ),
        1.0,
    )
    assert decode(good)
    for other in (b'"won"', b"[]", b"null"):
        with pytest.raises(DamagedLine):
            decode(good.replace(b'"solo"', other))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["t", "kind", *{f.name for k in events.KINDS.values() for f in dataclasses.fields(k)}])
inside = st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Totals)]), json_values, max_size=4)
hostile = st.binary(max_size=200) | st.builds(
    lambda kind, body, totals: json.dumps({"t": 1.0, "totals": totals} | body | {"kind": kind}).encode(),
    st.sampled_from(sorted(events.KINDS)),
    st.dictionaries(names, json_values, max_size=8),
    inside,
)


@given(line=hostile)
def test_hostile_lines_are_read_or_damaged_never_a_crash(line):
    try:
        event, t = decode(line)
        totals = fold(Totals(), event, t)
    except DamagedLine:
        return
    assert math.isfinite(t)
    assert Totals.from_json(json.loads(json.dumps(totals.to_json()))).to_json() == totals.to_json()


@given(some=st.lists(any_event, max_size=5), lines=st.lists(hostile, max_size=5), torn=st.binary(max_size=20))
def test_good_lines_are_read_between_bad_ones(tmp_path_factory, some, lines, torn):
    path = tmp_path_factory.mktemp("j") / "journal"
    bad = [line.replace(b"\n", b"") for line in lines]
    bad = [b"{" + line for line in bad]  # never an event
    body = b"".join(
        (bad[i] + b"\n" if i < len(bad) else b"") + (encode(some[i], 1.0) if i < len(some) else b"") for i in range(5)
    )
    path.write_bytes(body + b"{" + torn.replace(b"\n", b""))
    read = list(read_lines(path))
    assert [got[0] for got in read if got] == some
    assert read.count(None) == len(bad) + 1


def test_every_torn_tail_is_skipped_and_counted(tmp_path):
    path, first = tmp_path / "journal", encode(events.Left(exit_code=1), 1.0)
    last = encode(events.Leaving(reason="é"), 2.0)
    for cut in range(1, len(last) - 1):
        path.write_bytes(first + last[:cut])
        assert list(read_lines(path)) == [(events.Left(exit_code=1), 1.0), None]
    path.write_bytes(first + last[:-1])  # whole but for its newline
    assert list(read_lines(path)) == [(events.Left(exit_code=1), 1.0), (events.Leaving(reason="é"), 2.0)]


def test_a_line_without_end_is_not_taken_into_memory(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    line = encode(events.Left(exit_code=1), 1.0)
    path.write_bytes(b"x" * (3 * MAX_LINE) + b"\n" + line)
    assert list(read_lines(path)) == [None, (events.Left(exit_code=1), 1.0)]


def test_a_missing_file_is_empty(tmp_path: Path):
    assert list(read_lines(tmp_path / "none")) == []
