"""Peers that did not answer are called last for a while, and do not count as contacts."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.swarm.answering import FIRST_S, MAX_PEERS, MOST_S, Answering

EVE = PeerId("eve")


def test_each_further_failure_lasts_twice_as_long_up_to_a_bound() -> None:
    memory, now, lasted = Answering(), 0.0, list[float]()
    for _ in range(9):
        memory.failed(EVE, now)
        memory.failed(EVE, now + 1.0)
        began = now
        while EVE in memory.asked_last(now):
            now += 1.0
        lasted.append(now - began)
    assert lasted[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert lasted[-1] == MOST_S


def test_an_answer_forgives_and_a_call_does_not() -> None:
    memory = Answering()
    memory.failed(EVE, 0.0)
    memory.called(EVE)
    assert EVE in memory.asked_last(1.0)
    assert memory.contacts() == 0
    memory.answered(EVE)
    assert EVE not in memory.asked_last(1.0)
    assert memory.contacts() == 1
    memory.failed(EVE, 1.0)
    assert EVE in memory.asked_last(FIRST_S)
    assert EVE not in memory.asked_last(1.0 + FIRST_S), "it began anew"
    memory.failed(EVE, 100.0)
    memory.forget()
    assert EVE not in memory.asked_last(100.0)


def test_the_memory_is_bounded() -> None:
    memory = Answering()
    for number in range(2 * MAX_PEERS):
        memory.failed(PeerId(f"key {number}"), 0.0)
        memory.called(PeerId(f"caller {number}"))
    assert len(memory.asked_last(1.0)) == MAX_PEERS
    assert memory.contacts() == MAX_PEERS
