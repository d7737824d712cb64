"""Tests of testimony about relays: when a relay is avoided, how a slow one differs from a lying one, and what liars can
do."""

from __future__ import annotations

import pytest

from peer.codes import Code
from peer.protocol.messages import PeerId
from peer.protocol.relay.standing import AWAY_S, CUT_S, CUTS, LEFT_S, RelayStanding
from peer.protocol.relay.testimony import (
    LONE,
    MAX_RELAYS_TRIED,
    MAX_WITNESSES,
    MOST_PATIENCE_S,
    PROMPT_S,
    TIMES,
    WINDOW_S,
    RelayFault,
    RelayWitnesses,
    fault_of,
    patience_s,
)

NOW, SLOW_S = 1000.0, 3.0
RELAY, OTHER = PeerId("relay"), PeerId("other relay")
ONE, TWO, THREE = PeerId("one"), PeerId("two"), PeerId("three")
FAULT = RelayFault(Code.LATE, "it came late")


def code(found: RelayFault | None) -> str:
    return "" if found is None else found.code


# -- what is a delay -----------------------------------------------------------------------------------------------


def test_a_relay_that_answers_at_once_and_passes_on_late_delays() -> None:
    assert patience_s(SLOW_S, 0.05, 0.2) < 3.5
    assert fault_of(0.05, 3.4, ended=False).code == Code.LATE
    assert fault_of(0.05, 0.4, ended=True).code == Code.BROKEN


def test_an_honest_relay_on_a_slow_line_has_as_much_longer() -> None:
    """A handshake over a line with a round trip of one second takes about five round trips."""
    trip_s = 1.0
    assert patience_s(SLOW_S, trip_s, 0.2) > 5 * trip_s + 2.0
    assert patience_s(SLOW_S, 3600.0, 0.2) == MOST_PATIENCE_S, "nobody waits for ever"


def test_a_relay_that_is_too_slow_itself_is_not_called_one_that_delays() -> None:
    assert fault_of(PROMPT_S + 0.1, 12.0, ended=False).code == Code.SLOW


def test_where_the_other_path_is_slow_too_the_relay_may_be() -> None:
    """If a direct path is slow as well, the called peer is busy or has a slow line, so the relay gets more time."""
    assert patience_s(SLOW_S, 0.05, 2.5) == TIMES * 2.5
    assert patience_s(SLOW_S, None, None) == SLOW_S


# -- who is believed -----------------------------------------------------------------------------------------------


def test_a_relay_is_left_when_more_are_against_it_than_for_it() -> None:
    for found, left in (
        ({ONE: FAULT, TWO: FAULT, THREE: None}, True),
        ({ONE: FAULT, TWO: None}, False),
        ({ONE: FAULT, TWO: FAULT, THREE: None, PeerId("four"): None}, False),
        ({ONE: FAULT, TWO: FAULT}, True),
    ):
        standing = RelayStanding()
        assert (code(standing.tried(RELAY, found, NOW)) == Code.LATE) == left, found
        assert standing.is_left(RELAY, NOW) == left
        assert not standing.is_left(RELAY, NOW + LEFT_S)


def test_it_is_told_how_many_found_it_and_only_once() -> None:
    standing = RelayStanding()
    found = standing.tried(RELAY, {ONE: FAULT, TWO: FAULT, THREE: None}, NOW)
    assert found == RelayFault(Code.LATE, "it came late (2 of 3 peers found so)")
    assert standing.tried(RELAY, {ONE: FAULT, TWO: FAULT}, NOW + 1) is None


def test_a_partner_that_lies_has_one_relay_left_in_ten_minutes_and_never_one_over_which_others_answer() -> None:
    standing = RelayStanding()
    assert standing.tried(RELAY, {ONE: FAULT}, NOW), "nobody else can be asked"
    for number in range(50):
        assert standing.tried(PeerId(f"relay {number}"), {ONE: FAULT}, NOW + number) is None
    assert standing.tried(OTHER, {ONE: FAULT}, NOW + WINDOW_S + 60)
    for number in range(50):
        assert standing.tried(THREE, {ONE: FAULT, TWO: None}, NOW + 2 * WINDOW_S + number) is None


def test_free_keys_that_each_accuse_a_relay_have_few_left() -> None:
    standing = RelayStanding()
    told = [standing.tried(PeerId(f"relay {n}"), {PeerId(f"key {n}"): FAULT}, NOW + n) for n in range(100)]
    assert [bool(found) for found in told] == [True] * LONE + [False] * (100 - LONE)


def test_a_peer_that_answers_over_it_takes_back_what_it_said() -> None:
    standing = RelayStanding()
    assert standing.tried(RELAY, {ONE: FAULT, TWO: None}, NOW) is None
    standing.worked(RELAY, ONE, NOW + 1, bulk=False)
    assert standing.tried(RELAY, {TWO: FAULT, THREE: None}, NOW + 2) is None
    assert standing.tried(RELAY, {ONE: FAULT}, NOW + 3), "two of three"


def test_words_are_forgotten_and_bounded() -> None:
    words = RelayWitnesses()
    words.against(RELAY, ONE, FAULT, NOW, bulk=False)
    words.behind(RELAY, TWO, NOW, bulk=False)
    words.against(RELAY, THREE, FAULT, NOW + WINDOW_S + 1, bulk=False)
    assert words.verdict(RELAY, NOW + WINDOW_S + 1) == RelayFault(Code.LATE, "it came late (1 of 1 peers found so)")
    for number in range(3 * MAX_RELAYS_TRIED):
        relay = PeerId(f"relay {number}")
        for witness in range(2 * MAX_WITNESSES if number == 0 else 1):
            words.against(RELAY, PeerId(f"peer {witness}"), FAULT, NOW, bulk=True)
            words.behind(RELAY, PeerId(f"friend {witness}"), NOW, bulk=True)
        words.against(relay, ONE, FAULT, NOW, bulk=False)
    assert len(words._words) <= MAX_RELAYS_TRIED
    kept = words._words[RELAY, True]
    assert len(kept.against) == len(kept.behind) == MAX_WITNESSES


# -- transfers -----------------------------------------------------------------------------------------------------


def broken(standing: RelayStanding, times: int = CUTS, at: float = NOW, other: PeerId = ONE) -> None:
    for _ in range(times):
        standing.cut(RELAY, other, at)


def test_a_transfer_that_breaks_over_a_relay_goes_on_over_another_one_first() -> None:
    standing = RelayStanding()
    broken(standing, CUTS - 1)
    assert standing.order([RELAY, OTHER], NOW, ONE) == [RELAY, OTHER], "once may be chance"
    broken(standing, 1)
    assert standing.order([RELAY, OTHER], NOW, ONE) == [OTHER, RELAY]
    assert standing.order([RELAY, OTHER], NOW, TWO) == [RELAY, OTHER]
    assert standing.order([RELAY, OTHER], NOW + CUT_S + 1, ONE) == [RELAY, OTHER]


def test_a_transfer_that_broke_twice_over_it_and_is_completed_elsewhere_tells_on_a_relay() -> None:
    standing = RelayStanding()
    for number in range(100):  # it worked for long, and still forwards small calls
        for bulk in (True, False):
            standing.worked(RELAY, TWO, NOW - 1, bulk=bulk)
            standing.worked(RELAY, PeerId(f"peer {number}"), NOW - 1, bulk=bulk)
    broken(standing)
    (found,) = standing.completed(ONE, OTHER, NOW + 5)
    assert found == (RELAY, NOW)
    assert code(standing.outdone(RELAY, ONE, NOW)) == Code.BROKEN
    assert standing.completed(ONE, OTHER, NOW + 5) == [], "once"


@pytest.mark.parametrize("times", range(CUTS))
def test_a_transfer_that_is_completed_over_it_or_broke_less_often_tells_nothing(times: int) -> None:
    standing = RelayStanding()
    broken(standing, times)
    assert standing.completed(ONE, OTHER, NOW) == []
    broken(standing)
    assert standing.completed(ONE, RELAY, NOW) == []
    broken(standing)
    assert standing.completed(ONE, None, NOW + CUT_S + 1) == [], "that is another transfer"


def test_a_partner_that_breaks_transfers_on_purpose_gets_no_further_than_one_that_is_silent() -> None:
    standing = RelayStanding()
    assert standing.outdone(RELAY, ONE, NOW)
    assert standing.outdone(OTHER, ONE, NOW + 1) is None
    standing.worked(OTHER, TWO, NOW + 2, bulk=True)
    assert standing.outdone(OTHER, THREE, NOW + 3), "two of three"


def test_a_relay_that_is_gone_is_no_liar() -> None:
    standing = RelayStanding()
    standing.gone(RELAY, NOW)
    assert standing.outdone(RELAY, ONE, NOW - 1) is None
    assert standing.tried(RELAY, {ONE: FAULT, TWO: FAULT}, NOW + 1) is None
    assert standing.tried(RELAY, {ONE: FAULT, TWO: FAULT}, NOW + AWAY_S + 1)
