"""A swap that fails because its relay is gone: the partner stays known and in favour, but only a limited number of
times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused, PartnerSilent
from peer.exchange.pair.partners import PartnerMemory
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.protocol.messages import PeerId, RoundKey, RunId, SwapReport
from peer.protocol.pair.broken_paths import EXCUSED
from peer.protocol.pair.stranger_budget import StrangerBudget

PARTNER, STRANGER, RELAY = PeerId("partner"), PeerId("stranger"), PeerId("relay")
KEY, HELD_S = RoundKey(3, 0), 9.0
SILENT = PartnerSilent("the partner sent 1 of 9 bytes, too slowly", "silent")


class Peer:
    """A peer that has exchanged with `PARTNER` before. `gone`: the result of the look for the failed relay."""

    def __init__(self, gone: PeerId | None) -> None:
        clock, self.journal = SimpleNamespace(now=lambda: 1000.0), list[events.Event]()
        self.asked = list[tuple[PeerId, float]]()
        self.reputation = Reputation(clock.now, self.journal.append)
        self.reputation.limit_strangers(StrangerBudget(16.0))
        peer_table = SimpleNamespace(
            acquaintance=SimpleNamespace(met=lambda *what: None), detector=SimpleNamespace(exchanged=lambda peer: None)
        )
        diagnosis = SlowPeerMonitor(clock.now, self.journal.append)

        def relay_gone(partner: PeerId, within_s: float) -> PeerId | None:
            self.asked.append((partner, within_s))
            return gone

        run = RunId(b"r" * 32)
        self.memory = PartnerMemory(
            run,
            cast(Any, clock),
            cast(Any, peer_table),
            self.reputation,
            diagnosis,
            self.journal.append,
            relay_gone=relay_gone,
        )
        self.memory.exchanged(PARTNER, KEY, SwapReport(1, 1, 1.0, True))

    def fails(self, error: ExchangeError = SILENT, partner: PeerId = PARTNER) -> str:
        """Make a swap fail, and return the code in the journal."""
        self.memory.failed(partner, KEY, error, HELD_S)
        told = [one for one in self.journal if isinstance(one, events.PartnerFailed)]
        return told[-1].code


@pytest.mark.parametrize("error", [SILENT, PartnerLost("it broke off")], ids=["silent", "lost"])
def test_a_partner_does_not_pay_for_a_relay_that_is_gone(error: ExchangeError) -> None:
    peer = Peer(RELAY)
    assert peer.fails(error) == "path"
    assert peer.asked == [(PARTNER, HELD_S)]
    assert not peer.reputation.is_stranger(PARTNER)
    assert not peer.reputation.exclusion_reason(PARTNER)
    assert not peer.reputation.stranger_budget_spent(STRANGER), "nor do others"
    assert not any(isinstance(one, events.StandingLowered) for one in peer.journal)


def test_a_partner_whose_relays_are_gone_over_and_over_pays() -> None:
    peer = Peer(RELAY)
    assert [peer.fails() for _ in range(EXCUSED + 1)] == ["path"] * EXCUSED + ["silent"]
    assert peer.reputation.is_stranger(PARTNER)
    assert peer.reputation.exclusion_reason(PARTNER)


def test_a_stranger_uses_up_the_budget_of_strangers_all_the_same() -> None:
    """Otherwise anybody with a new key and a relay of their own could hold up our trainer without end."""
    peer = Peer(RELAY)
    assert peer.fails(partner=STRANGER) == "path"
    assert peer.reputation.stranger_budget_spent(PeerId("another stranger"))


@pytest.mark.parametrize("error", [BadPayload("digest", "not what it says"), PartnerRefused("taken", "no")])
def test_wrong_bytes_and_refusals_are_no_matter_of_the_path(error: ExchangeError) -> None:
    peer = Peer(RELAY)
    assert peer.fails(error) == cast(Any, error).code
    assert not peer.asked


def test_where_the_relay_stood_the_partner_pays() -> None:
    peer = Peer(None)
    assert peer.fails() == "silent"
    assert peer.reputation.is_stranger(PARTNER)
