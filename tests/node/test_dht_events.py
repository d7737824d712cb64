from __future__ import annotations

from peer.discovery.dht_node.health import Health, ordinal
from peer.node.open import _HelperEvents, network_news
from peer.observe import events


def test_journal_and_person_are_told() -> None:
    emitted: list[events.Event] = []
    watch = _HelperEvents(emitted.append)
    watch.helper_ended("p2pd was killed", 1)
    watch.helper_ended("it cannot be started", 2)
    watch.helper_back(1.23456, 2)
    assert emitted == [
        events.HelperEnded(cause="p2pd was killed", times=1),
        events.HelperEnded(cause="it cannot be started", times=2),
        events.HelperBack(seconds=1.235, times=2),
    ]
    said = [network_news(event) for event in emitted]
    assert "p2pd was killed" in said[0]
    assert "in a row" not in said[0]
    assert "2nd time in a row" in said[1]
    assert "1.2 s" in said[2]


def test_the_state_in_words() -> None:
    health = Health()
    assert health.trouble() == "nobody else answers in the DHT"
    health.state = "joined"
    assert health.trouble() == ""
    health.state, health.times, health.cause = "rebuilding", 3, "it hung"
    assert health.trouble() == "rebuilding, 3rd time, because it hung"


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th",
    ]  # fmt: skip
