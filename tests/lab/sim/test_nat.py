"""Which routers let a hole be punched."""

from __future__ import annotations

import itertools

import pytest

from peer.errors import UsageError
from peer.lab.sim.nat import NATS, DependsOn, Nat, can_punch, nat_named

ALL = [None, *(Nat(mapping, filtering) for mapping, filtering in itertools.product(DependsOn, repeat=2))]

WORKS = {
    ("endpoint-independent", "endpoint-independent"): True,
    ("endpoint-independent", "port-restricted"): True,
    ("endpoint-independent", "address-dependent"): True,
    ("endpoint-independent", "symmetric"): True,
    ("port-restricted", "port-restricted"): True,
    ("port-restricted", "address-dependent"): False,
    ("port-restricted", "symmetric"): False,
    ("address-dependent", "address-dependent"): False,
    ("address-dependent", "symmetric"): False,
    ("symmetric", "symmetric"): False,
}
"""Which pairs of routers can be punched, by RFC 5128, section 3.3, and Ford et al. 2005."""


@pytest.mark.parametrize(("pair", "works"), WORKS.items())
def test_which_pairs_punch(pair: tuple[str, str], works: bool) -> None:
    assert can_punch(NATS[pair[0]], NATS[pair[1]]) is works


@pytest.mark.parametrize("kind", NATS)
def test_an_end_without_a_router_is_reached_by_all(kind: str) -> None:
    assert can_punch(NATS[kind], None)


def test_it_takes_two_and_their_order_says_nothing() -> None:
    for one, other in itertools.product(ALL, repeat=2):
        assert can_punch(one, other) == can_punch(other, one)


def test_a_router_that_filters_less_opens_no_less() -> None:
    for one, other in itertools.product(ALL, repeat=2):
        if one is None or one.filtering is DependsOn.NOTHING:
            continue
        milder = Nat(one.mapping, DependsOn(one.filtering - 1))
        assert can_punch(milder, other) >= can_punch(one, other)


def test_two_whose_mappings_both_depend_on_the_other_never_meet() -> None:
    mapped = [nat for nat in ALL if nat is not None and nat.mapping is not DependsOn.NOTHING]
    assert not any(can_punch(one, other) for one, other in itertools.product(mapped, repeat=2))


def test_an_unknown_kind_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="symetric"):
        nat_named("symetric")
