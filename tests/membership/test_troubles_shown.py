"""What `peer status` shows of peers in trouble, with a clock of the test."""

from __future__ import annotations

from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.observe.events import Event
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId

PARTNER = PeerId("partner")


def test_refusals_are_counted_and_their_age_is_by_the_clock() -> None:
    now, journal = [100.0], list[Event]()
    reputation = Reputation(lambda: now[0], journal.append)
    for _ in range(3):
        reputation.refused("203.0.113.7", "no_token", "it said no Hello")
        now[0] += 10.0
    found = to_json(reputation.report())
    assert found["refusal_counts"] == {"no_token": 3}
    assert [one["seconds_ago"] for one in found["refusals"]] == [10.0], "the same once more is one line"
    assert found["out_of_favour"] == []


def test_a_peer_out_of_favour_is_shown_with_the_seconds_that_are_left() -> None:
    now = [100.0]
    reputation = Reputation(lambda: now[0], lambda event: None)
    while not reputation.out_for_s(PARTNER):
        reputation.penalize(PARTNER, "checksum", "it did not match")
    whole = reputation.out_for_s(PARTNER)
    now[0] += whole / 2
    assert [one["seconds_left"] for one in to_json(reputation.report())["out_of_favour"]] == [round(whole / 2)]
    now[0] += whole
    assert to_json(reputation.report())["out_of_favour"] == []


def test_a_suspicion_is_counted_and_its_age_is_by_the_clock() -> None:
    now = [100.0]
    detector = FailureDetector(lambda: now[0])
    assert to_json(detector.report())["suspected_count"] == 0
    detector.failed(PARTNER, "no answer", 0.0)
    now[0] += 12.5
    found = to_json(detector.report())
    assert (found["suspected_count"], found["out_count"], found["cut_off_s"]) == (1, 0, None)
    assert [(one["seconds"], one["asked"], one["denied"]) for one in found["suspected"]] == [(12.5, 0, 0)]
