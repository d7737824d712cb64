from __future__ import annotations

from peer.protocol.messages import PeerId, Probed
from peer.protocol.swarm.reachability import (
    MAX_VOICES,
    SETTLED_EVERY_S,
    UNHEARD_EVERY_S,
    UNSETTLED_EVERY_S,
    VERDICT_LASTS_S,
    Question,
    Reachability,
)

OURS = "192.0.2.7:4810"
ELSEWHERE = "198.51.100.4:4810"
AT = {name: f"203.0.{number}.1:4810" for number, name in enumerate("abcd")}
A, B, C, D = (PeerId(name) for name in "abcd")


def yes(at: str, *endpoints: str) -> Probed:
    return Probed((OURS, *endpoints), endpoints or (OURS,), "", at)


def no(at: str) -> Probed:
    return Probed((OURS,), (), "no answer there", at)


def question(peer: PeerId, at: float, *, trusted: bool = False, only_network: bool = False) -> Question:
    return Question(peer, (OURS,), at, trusted, only_network)


def heard(*words: tuple[PeerId, bool]) -> Reachability:
    """Return the reachability after answers of peers, each in a network of its own."""
    state = Reachability()
    for number, (peer, reached) in enumerate(words):
        state.on_probed(question(peer, float(number)), yes(AT[peer]) if reached else no(AT[peer]))
    return state


def test_nobody_has_tried_yet() -> None:
    assert Reachability().reachable() is None
    assert "nobody has tried" in Reachability().why()


def test_the_majority_of_the_last_networks_decides() -> None:
    assert heard((A, True)).reachable() is True
    assert heard((A, False), (B, False)).reachable() is False
    assert heard((A, False), (B, False), (C, True)).reachable() is False
    assert heard((A, False), (B, True), (C, True)).reachable() is True
    assert heard((A, False), (B, False), (C, True), (D, True)).reachable() is True  # A's answer, the oldest, is dropped


def test_one_network_never_makes_us_closed() -> None:
    state = heard((A, False))
    assert state.reachable() is None
    assert "one network" in state.why()
    for number in range(40):
        state.on_probed(question(PeerId(f"key {number}"), 1.0), no("203.0.0.9:4810"))
    assert state.reachable() is None
    state.on_probed(question(B, 2.0), yes(AT["b"]))
    assert state.reachable() is True, "the many keys have one voice, and did not push out the other network"


def test_names_are_one_network() -> None:
    state = Reachability()
    for name in ("a.example:1", "b.another:1", "203-0-1-1.free.name:1"):
        state.on_probed(question(PeerId(name), 1.0), no(name))
    assert state.reachable() is None


def test_where_no_other_network_is_in_sight_its_word_is_enough() -> None:
    state = Reachability()
    for peer, word in ((A, no("127.0.0.1:1")), (B, no("127.0.0.1:2")), (C, yes("127.0.0.1:3"))):
        state.on_probed(question(peer, 1.0, only_network=True), word)
        assert state.reachable() is False


def test_the_operators_node_is_believed() -> None:
    state = Reachability()
    state.on_probed(question(A, 1.0, trusted=True), no(AT["a"]))
    assert state.reachable() is False
    state.on_probed(question(B, 2.0), yes(AT["b"]))
    state.forget()
    state.on_probed(question(A, 1.0, trusted=True), yes(AT["a"], ELSEWHERE))
    assert state.endpoints() == (ELSEWHERE,)


def test_a_verdict_stays_when_the_operators_node_is_gone() -> None:
    state = Reachability()
    state.on_probed(question(A, 1.0, trusted=True), no(AT["a"]))
    state.on_probed(question(B, 10 + VERDICT_LASTS_S), no(AT["b"]))
    assert state.reachable() is False


def test_a_call_from_outside_proves_that_we_are_open() -> None:
    state = heard((A, False), (B, False))
    state.called(["10.0.0.4", "127.0.0.1", "192.0.2.9", ""], [OURS], 2.0)
    assert state.reachable() is False, "from our own networks"
    state.called(["8.8.8.8"], [OURS], 3.0)
    assert state.reachable() is True
    assert "8.8.8.8" in state.why()
    state.on_probed(question(C, 4.0), no(AT["c"]))
    assert state.reachable() is True
    state.on_probed(question(A, 5.0 + VERDICT_LASTS_S), no(AT["a"]))
    state.on_probed(question(B, 5.0 + VERDICT_LASTS_S), no(AT["b"]))
    assert state.reachable() is False, "it called long ago"


def test_over_one_version_of_ip_we_may_be_open() -> None:
    state = heard((A, False), (B, False))
    for number, peer in enumerate((A, B)):
        state.on_probed(question(peer, 3.0), yes(f"[2001:db8:{number}::1]:4810"))
    assert state.reachable() is True


def test_one_prober_has_one_voice() -> None:
    state = heard((A, True), (B, True), (C, False), (C, False), (C, False))
    assert state.reachable() is True


def test_who_declined_says_nothing() -> None:
    state = Reachability()
    state.on_probed(question(A, 1.0, trusted=True), Probed((), (), "busy with other probes", AT["a"]))
    assert state.reachable() is None


def test_old_words_no_longer_count() -> None:
    state = heard((A, False), (B, False))
    state.on_probed(question(C, 10 + VERDICT_LASTS_S), yes(AT["c"]))
    assert state.reachable() is True
    assert state.why().startswith("1 of 1 peers")


def test_an_address_that_we_did_not_ask_about_needs_two_networks() -> None:
    state = Reachability()
    for number in range(3):
        state.on_probed(question(PeerId(f"key {number}"), 1.0), yes("203.0.0.9:4810", ELSEWHERE))
    assert state.endpoints() == ()
    state.on_probed(question(B, 2.0), yes(AT["b"], ELSEWHERE, OURS))
    assert state.endpoints() == (ELSEWHERE, OURS)
    state = Reachability()
    for peer in (A, B, C):
        state.on_probed(question(peer, 1.0), yes(AT[peer], "victim.example:443"))
    assert state.endpoints() == (), "a name is never learned"


def test_why_names_what_was_found() -> None:
    assert "no answer there" in heard((A, False), (B, False)).why()
    assert OURS in heard((A, True)).why()


def test_it_asks_often_until_enough_agree() -> None:
    state = heard((A, True), (B, True))
    assert state.due(0.0)
    state.asked(100.0)
    assert not state.due(100.0 + UNSETTLED_EVERY_S - 1)
    assert state.due(100.0 + UNSETTLED_EVERY_S)
    state.on_probed(question(C, 101.0), yes(AT["c"]))
    assert len({A, B, C}) == MAX_VOICES
    assert not state.due(100.0 + UNSETTLED_EVERY_S)
    assert state.due(100.0 + SETTLED_EVERY_S)


def test_while_nobody_has_a_word_several_are_asked_and_soon_again() -> None:
    state = Reachability()
    state.asked(100.0)
    assert state.at_once() == MAX_VOICES
    assert state.due(100.0 + UNHEARD_EVERY_S)
    state.on_probed(question(A, 101.0), Probed((), (), "busy with other probes"))
    assert state.due(100.0 + UNHEARD_EVERY_S), "that was no word"
    state.on_probed(question(B, 101.0), no(AT["b"]))
    assert not state.due(100.0 + UNHEARD_EVERY_S)
    assert state.at_once() == 1


def test_those_not_yet_heard_are_asked_first() -> None:
    assert [peer for peer in (A, B, C) if heard((A, True)).has_verdict_of(peer, 4)] == [A]


def test_new_addresses_make_old_words_worthless() -> None:
    state = heard((A, True))
    state.asked(1.0)
    state.forget()
    assert state.reachable() is None
    assert state.due(1.0)


def test_over_ipv4_it_is_judged_apart() -> None:
    state = heard((A, False), (B, False))
    for number, peer in enumerate((A, B)):
        state.on_probed(question(peer, 3.0), yes(f"[2001:db8:{number}::1]:4810"))
    assert (state.reachable_over(4), state.reachable_over(6)) == (False, True)
    assert Reachability().reachable_over(4) is None
    assert heard((A, False)).reachable_over(4) is None, "one network"
    assert heard((A, True)).reachable_over(4) is True
    state.called(["8.8.8.8"], [OURS], 4.0)
    assert state.reachable_over(4) is True


def test_a_neighbour_behind_the_same_router_says_nothing_of_the_internet() -> None:
    state = heard((A, False), (B, False))
    state.on_probed(question(C, 3.0), yes("192.168.7.11:4810", "192.168.7.10:4810"))
    assert state.reachable_over(4) is False


def test_an_address_is_denied_when_it_was_tried_in_vain() -> None:
    assert heard((A, False), (B, True)).denied() == frozenset(), "somebody got through"
    assert heard((A, False), (B, False)).denied() == {OURS}
    six = Reachability()
    six.on_probed(question(A, 1.0), no("[2001:db8::1]:4810"))
    assert six.denied() == frozenset(), "over IPv6 it was not tried"


def test_a_further_address_leaves_the_verdict_and_forgets_who_did_not_get_through() -> None:
    state = heard((A, False), (B, False))
    state.asked(2.0)
    state.grow()
    assert state.reachable() is False, "no hope without a reason"
    assert state.denied() == frozenset()
    assert state.due(2.1)
    assert "at its new addresses" in state.why()
    state.on_probed(question(A, 3.0), yes(AT["a"], ELSEWHERE))
    assert state.reachable() is True

    state = heard((A, True))
    state.grow()
    assert state.endpoints() == (OURS,)
