"""How `peer status` puts values for a person."""

from __future__ import annotations

from peer.cli.status import _text


def test_findings_are_told_as_sentences() -> None:
    finding = {"what": "slow_uplink", "who": "you", "number": 0.8, "unit": "Mbit/s", "why": "your uplink: 0.8 Mbit/s"}
    assert _text([finding]) == "\n    your uplink: 0.8 Mbit/s"
