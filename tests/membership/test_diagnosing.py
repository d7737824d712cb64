"""From exchanges to the journal, `peer status` and the timings for partners."""

from __future__ import annotations

from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.observe.event_codec import decode, encode
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId, PeerTimings, RoundKey, SwapReport, TransferTimings

PARTNERS = [PeerId(f"peer-{number:06d}") for number in range(4)]
NBYTES = 4_000_000


class Watched:
    def __init__(self) -> None:
        self.now = 1000.0
        self.events = list[events.Event]()
        self.slow_peers = SlowPeerMonitor(lambda: self.now, self.events.append)

    def exchange(self, number: int, rate_out: float, their_lag_s: float = 0.0) -> None:
        key, slow_peers = RoundKey(number, 0), self.slow_peers
        self.now += 20.0
        slow_peers.ready(key, self.now - 10.0, 640)
        own = slow_peers.own_timings(key)
        assert own is not None
        told = PeerTimings(own.ready + their_lag_s, own.worked + their_lag_s, 6e5, 6e5)
        pace = TransferTimings(self.now, self.now, rate_out, 6e5)
        slow_peers.exchanged(PARTNERS[number % 4], SwapReport(NBYTES, NBYTES, 5.0, True, told, own, pace))


def test_a_change_is_journaled_with_its_reason_and_survives_the_file() -> None:
    watched = Watched()
    for number in range(12):
        watched.exchange(number, 1e5)
    [event] = watched.events
    assert isinstance(event, events.DiagnosisChanged)
    assert (event.what, event.who, event.found) == ("slow_uplink", "you", True)
    assert "0.8 Mbit/s; the same partners get 4.8" in event.why
    assert decode(encode(event, 5.0)) == (event, 5.0)
    for number in range(12, 80):
        watched.exchange(number, 6e5)
    assert [event.found for event in watched.events if isinstance(event, events.DiagnosisChanged)] == [True, False]


def test_status_has_one_entry_when_there_is_nothing() -> None:
    watched = Watched()
    [entry] = to_json(watched.slow_peers.report())
    assert entry == {
        "what": "nothing",
        "who": "",
        "number": 0,
        "unit": "exchanges",
        "why": "not enough exchanges yet (0 of 8)",
    }
    assert to_json(watched.slow_peers.numbers()) == {}


def test_status_and_numbers_when_there_is_something() -> None:
    watched = Watched()
    for number in range(16):
        watched.exchange(number, 1e5, their_lag_s=-30.0)
    assert [(entry["what"], entry["who"]) for entry in to_json(watched.slow_peers.report())] == [
        ("late_trainer", "you"),
        ("slow_uplink", "you"),
    ]
    assert to_json(watched.slow_peers.numbers()) == {"sent": 1e5, "received": 6e5, "late_s": 30.0}


def test_a_partner_is_told_of_this_round_only() -> None:
    watched = Watched()
    watched.slow_peers.ready(RoundKey(3, 0), 990.0, 640)
    assert watched.slow_peers.own_timings(RoundKey(3, 0)) == PeerTimings(1000.0, 10.0, 0.0, 0.0, 640)
    assert watched.slow_peers.own_timings(RoundKey(4, 0)) is None
    assert watched.slow_peers.own_timings(RoundKey(3, 1)) is None


def test_refusals_and_wrong_bytes_are_not_slowness() -> None:
    watched = Watched()
    for number in range(20):
        watched.slow_peers.failed(PARTNERS[number % 4], PartnerRefused("taken", ""))
        watched.slow_peers.failed(PARTNERS[number % 4], BadPayload("digest", ""))
    assert watched.events == []
    for number in range(20):
        watched.slow_peers.failed(PARTNERS[number % 4], PartnerSilent("") if number % 2 else PartnerLost(""))
    [event] = watched.events
    assert isinstance(event, events.DiagnosisChanged)
    assert event.who == "you"
