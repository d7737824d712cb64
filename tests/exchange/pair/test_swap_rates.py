"""How long swaps may take, by the measured rates of partners and relays."""

from __future__ import annotations

import pytest

from peer.exchange.deadlines import RELAYED_PART, transfer_s
from peer.exchange.pair.rates import MAX_PARTNERS, SwapRates
from peer.protocol.messages import DIRECT, PathKind, PeerId, SwapReport, Way

A, B = PeerId("a"), PeerId("b")
MEGA = 10**6
OVER_RELAY = Way(PathKind.RELAYED, "relay", "no hole could be punched")
PUNCHED = Way(PathKind.PUNCHED, "relay", "both routers let the other's packets in")


def report(rate: float, way: Way = DIRECT) -> SwapReport:
    return SwapReport(MEGA, MEGA, MEGA / rate, True, way=way)


def test_before_anything_is_measured_a_rate_is_assumed_and_a_slower_one_over_relays() -> None:
    rates = SwapRates(1e5)
    assert rates.budget_s(A, MEGA, None, relayed=False) == transfer_s(MEGA, 1e5)
    assert rates.budget_s(A, MEGA, None, relayed=True) == transfer_s(MEGA, 1e5 * RELAYED_PART)
    assert rates.budget_s(A, MEGA, 1e3, relayed=False) == transfer_s(MEGA, 1e3), "our own cap"


def test_a_measured_partner_goes_by_its_own_rate_and_others_by_the_slowest() -> None:
    rates = SwapRates(1e5)
    rates.learn(A, report(5e4))
    assert rates.budget_s(A, MEGA, None, relayed=False) == transfer_s(MEGA, 5e4)
    assert rates.budget_s(B, MEGA, None, relayed=False) == transfer_s(MEGA, 5e4)


def test_near_partners_that_are_fast_say_nothing_of_one_that_was_never_met() -> None:
    rates = SwapRates(1e5)
    rates.learn(A, report(1e8))
    assert rates.budget_s(A, MEGA, None, relayed=False) == transfer_s(MEGA, 1e8)
    assert rates.budget_s(B, MEGA, None, relayed=False) == transfer_s(MEGA, 1e5)


def test_swaps_over_relays_have_one_rate_whoever_the_partner_is() -> None:
    rates = SwapRates(1e5)
    rates.learn(A, report(2e4, OVER_RELAY))
    assert rates.budget_s(B, MEGA, None, relayed=True) == transfer_s(MEGA, 2e4)
    rates.learn(B, report(4e4, OVER_RELAY))
    assert rates.budget_s(A, MEGA, None, relayed=True) == transfer_s(MEGA, 3e4), "half of the old, half of the new"
    assert rates.budget_s(A, MEGA, None, relayed=False) == transfer_s(MEGA, 1e5), (
        "and nothing is learned of the partner"
    )


def test_a_punched_way_is_the_partners_own_but_a_relay_may_have_to_do_next_time() -> None:
    rates = SwapRates(1e5)
    rates.learn(A, report(1e6, PUNCHED))
    assert rates.budget_s(A, MEGA, None, relayed=False) == transfer_s(MEGA, 1e6)
    assert rates.budget_s(A, MEGA, None, relayed=True) == transfer_s(MEGA, 1e5 * RELAYED_PART)


@pytest.mark.parametrize("relayed", [False, True])
def test_only_over_relays_the_length_of_a_round_is_a_bound(relayed: bool) -> None:
    rates = SwapRates(1e5, longest_s=20.0)
    assert (rates.budget_s(A, 100 * MEGA, None, relayed=relayed) == 20.0) is relayed


def test_what_is_remembered_is_bounded() -> None:
    rates = SwapRates(1e5)
    for number in range(10 * MAX_PARTNERS):
        rates.learn(PeerId(f"peer {number}"), report(1e4))
    assert len(rates._partners) == MAX_PARTNERS
