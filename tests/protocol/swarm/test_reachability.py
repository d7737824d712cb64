from __future__ import annotations

from peer.protocol.messages import PeerId, Probed
from peer.protocol.swarm.reachability import (
    MAX_VOICES,
    SETTLED_EVERY_S,
    UNHEARD_EVERY_S,
    UNSETTLED_EVERY_S,
    WORD_LASTS_S,
    Reachability,
)

HERE = "192.0.2.7:4810"
YES = Probed((HERE,), (HERE,), "")
NO = Probed((HERE,), (), f"{HERE}: no answer within 4 s")
A, B, C, D = (PeerId(name) for name in "abcd")


def heard(*words: tuple[PeerId, Probed]) -> Reachability:
    state = Reachability()
    for number, (peer, word) in enumerate(words):
        state.heard(peer, word, float(number))
    return state


def test_nobody_has_tried_yet() -> None:
    assert Reachability().reachable() is None
    assert "nobody has tried" in Reachability().why()


def test_the_majority_of_the_last_voices_decides() -> None:
    assert heard((A, YES)).reachable() is True
    assert heard((A, NO)).reachable() is False
    assert heard((A, NO), (B, NO), (C, YES)).reachable() is False
    assert heard((A, NO), (B, YES), (C, YES)).reachable() is True
    assert heard((A, NO), (B, NO), (C, YES), (D, YES)).reachable() is True  # A's word is the oldest of four


def test_one_prober_has_one_voice() -> None:
    state = heard((A, YES), (B, YES), (C, NO), (C, NO), (C, NO))
    assert state.reachable() is True


def test_who_declined_says_nothing() -> None:
    assert heard((A, Probed((), (), "busy with other probes"))).reachable() is None


def test_old_words_no_longer_count() -> None:
    state = heard((A, NO), (B, NO))
    state.heard(C, YES, 10 + WORD_LASTS_S)
    assert state.reachable() is True
    assert state.why().startswith("1 of 1 peers")


def test_only_addresses_where_we_were_reached_are_told() -> None:
    elsewhere = "198.51.100.4:4810"
    state = heard((A, Probed((HERE, elsewhere), (elsewhere,), "refused")), (B, YES))
    assert state.endpoints() == (HERE, elsewhere)
    assert heard((A, NO)).endpoints() == ()


def test_why_names_what_was_found() -> None:
    assert "no answer within 4 s" in heard((A, NO)).why()
    assert HERE in heard((A, YES)).why()


def test_it_asks_often_until_enough_agree() -> None:
    state = heard((A, YES), (B, YES))
    assert state.due(0.0)
    state.asked(100.0)
    assert not state.due(100.0 + UNSETTLED_EVERY_S - 1)
    assert state.due(100.0 + UNSETTLED_EVERY_S)
    state.heard(C, YES, 101.0)
    assert len({A, B, C}) == MAX_VOICES
    assert not state.due(100.0 + UNSETTLED_EVERY_S)
    assert state.due(100.0 + SETTLED_EVERY_S)


def test_while_nobody_has_a_word_several_are_asked_and_soon_again() -> None:
    state = Reachability()
    state.asked(100.0)
    assert state.at_once() == MAX_VOICES
    assert state.due(100.0 + UNHEARD_EVERY_S)
    state.heard(A, Probed((), (), "busy with other probes"), 101.0)
    assert state.due(100.0 + UNHEARD_EVERY_S), "that was no word"
    state.heard(B, NO, 101.0)
    assert not state.due(100.0 + UNHEARD_EVERY_S)
    assert state.at_once() == 1


def test_those_not_yet_heard_are_asked_first() -> None:
    assert [peer for peer in (A, B, C) if heard((A, YES)).has_word_of(peer)] == [A]


def test_new_addresses_make_old_words_worthless() -> None:
    state = heard((A, YES))
    state.asked(1.0)
    state.forget()
    assert state.reachable() is None
    assert state.due(1.0)
