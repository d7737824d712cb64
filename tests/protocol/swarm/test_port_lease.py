from __future__ import annotations

import random
from dataclasses import replace

import pytest

from peer.protocol.swarm.port_lease import (
    FIRST_PORT,
    LAST_PORT,
    OTHER_PORTS,
    LeaseTerms,
    PortLease,
    PortMapping,
    RouterRefusal,
    RouterRequest,
    Surroundings,
    no_mapping_reason,
)

OWN, OTHER = 4811, 31234
SEEN = "45.77.1.1"
CLOSED = Surroundings(reachable=False, seen=SEEN)
OPEN = Surroundings(reachable=True, reached=(f"{SEEN}:{OWN}",), seen=SEEN)
TERMS = LeaseTerms()
SILENT = RouterRefusal("no router in this network answers UPnP")


def lease(left_over: int = 0, terms: LeaseTerms = TERMS) -> PortLease:
    return PortLease(OWN, random.Random(1), 0.0, left_over, terms)


def mapping(port: int = OWN, address: str = SEEN, lease_s: float = 3600.0) -> PortMapping:
    return PortMapping(port=port, router="192.168.7.1", address=address, lease_s=lease_s)


def held(given: PortMapping | None = None, at: float = 100.0) -> PortLease:
    found = lease()
    found.begun(at)
    found.opened(given or mapping(), CLOSED, at)
    return found


# -- whether to ask ----------------------------------------------------------------------------------------------------


def test_who_can_be_dialled_asks_nothing() -> None:
    ours = lease()
    assert [ours.next_request(OPEN, at) for at in (0.0, 1e3, 1e6)] == [None] * 3
    assert "others reach this peer without it" in ours.why(OPEN, 0.0)


def test_who_cannot_be_dialled_asks_at_once() -> None:
    assert lease().next_request(CLOSED, 0.0) is RouterRequest.OPEN


def test_while_nobody_knows_others_have_some_time_to_find_out() -> None:
    ours, here = lease(), Surroundings(seen=SEEN)
    assert ours.next_request(here, TERMS.unknown_s - 1) is None
    assert "before others have tried" in ours.why(here, 1.0)
    assert ours.next_request(here, TERMS.unknown_s) is RouterRequest.OPEN


def test_where_it_may_not_nothing_is_asked_and_what_is_held_is_given_back() -> None:
    here = replace(CLOSED, skip_reason="the run lies in a private network")
    assert lease().next_request(here, 0.0) is None
    assert lease().why(here, 0.0) == "no router is asked: the run lies in a private network"
    assert held().next_request(here, 200.0) is RouterRequest.CLOSE


def test_a_machine_that_lost_its_way_to_the_internet_keeps_what_it_holds() -> None:
    here = replace(CLOSED, online=False)
    assert lease().next_request(here, 0.0) is None
    assert "no way to the internet" in lease().why(here, 0.0)
    ours = held(at=0.0)
    assert ours.next_request(here, 1800.0) is None
    assert ours.next_request(CLOSED, 1801.0) is RouterRequest.OPEN, "it is back"


def test_what_an_earlier_life_held_is_asked_for_again_at_once() -> None:
    """The port of an earlier process stays open until its lease ends, so others still reach us through it."""
    ours = lease(left_over=OTHER)
    assert ours.next_request(OPEN, 0.0) is RouterRequest.OPEN
    assert ours.ports()[0] == ours.to_close() == OTHER


@pytest.mark.parametrize(
    ("hosts", "source", "private", "why"),
    [
        (["0.0.0.0", "::"], "192.168.7.10", False, ""),
        (["192.168.7.10"], "192.168.7.10", False, ""),
        (["0.0.0.0"], "100.64.3.4", False, ""),
        (["0.0.0.0"], "192.168.7.10", True, "private network"),
        (["127.0.0.1", "::1"], "192.168.7.10", False, "this machine only"),
        (["::"], "192.168.7.10", False, "IPv6 only"),
        (["127.0.0.1", "::"], "192.168.7.10", False, "IPv6 only"),
        (["0.0.0.0"], "", False, ""),
        (["0.0.0.0"], "45.77.1.1", False, "public address, 45.77.1.1"),
    ],
)
def test_why_a_peer_has_no_use_for_a_router(hosts: list[str], source: str, private: bool, why: str) -> None:
    found = no_mapping_reason(hosts, source, private_run=private)
    assert why in found if why else found == ""


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_the_own_port_is_asked_for_first_then_others() -> None:
    own, *others = lease().ports()
    assert own == OWN
    assert len(set(others)) == OTHER_PORTS
    assert all(FIRST_PORT <= port <= LAST_PORT for port in others)


def test_the_port_that_is_held_is_asked_for_again() -> None:
    assert held(mapping(OTHER)).ports()[:2] == (OTHER, OWN)


# -- the lease ---------------------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_at_its_half() -> None:
    ours = held(at=100.0)
    assert ours.next_request(CLOSED, 100.0 + 1799) is None
    assert ours.next_request(CLOSED, 100.0 + 1800) is RouterRequest.OPEN
    assert ours.opened(mapping(), CLOSED, 1900.0) == "", "a renewal is no news"
    assert ours.next_request(CLOSED, 1900.0 + 1799) is None


def test_a_router_with_short_leases_is_not_asked_all_the_time() -> None:
    ours = held(mapping(lease_s=1.0), at=0.0)
    assert ours.next_request(CLOSED, TERMS.least_renewal_s - 1) is None
    assert ours.next_request(CLOSED, TERMS.least_renewal_s) is RouterRequest.OPEN


def test_a_port_without_an_end_is_looked_after_too() -> None:
    ours = held(mapping(lease_s=0.0), at=0.0)
    assert ours.next_request(CLOSED, TERMS.lease_s / 2) is RouterRequest.OPEN
    assert ours.notice(CLOSED, 1e6) == ""
    assert ours.held is not None


def test_a_renewal_that_fails_is_tried_again_and_told_once() -> None:
    ours = held(at=0.0)
    assert ours.refused(SILENT, CLOSED, 1800.0) == f"port {OWN} was not renewed: {SILENT.why}"
    assert ours.next_request(CLOSED, 1800.0 + TERMS.retry_s) is RouterRequest.OPEN
    assert ours.refused(SILENT, CLOSED, 1860.0) == ""
    assert ours.held is not None, "the lease runs on"
    assert ours.next_request(CLOSED, 1860.0 + 2 * TERMS.retry_s - 1) is None
    assert SILENT.why in ours.why(CLOSED, 1900.0)
    assert ours.notice(CLOSED, 3600.0) == f"the lease of port {OWN} is over: {SILENT.why}"
    assert ours.held is None
    assert ours.endpoint(SEEN) == ""


def test_a_renewal_after_failures_is_told() -> None:
    ours = held(at=0.0)
    ours.refused(SILENT, CLOSED, 1800.0)
    assert "opened port" in ours.opened(mapping(), CLOSED, 1900.0)


def test_tries_grow_rarer_up_to_a_bound() -> None:
    ours, now, waits = lease(), 0.0, []
    for _ in range(12):
        ours.refused(SILENT, CLOSED, now)
        first = next(after for after in range(10_000) if ours.next_request(CLOSED, now + after) is RouterRequest.OPEN)
        waits.append(first)
        now += first
    assert waits[:4] == [60, 120, 240, 480]
    assert waits[-1] == TERMS.most_retry_s


def test_a_refusal_is_told_once_and_another_again() -> None:
    ours = lease()
    assert ours.refused(SILENT, CLOSED, 0.0) == SILENT.why
    assert ours.refused(SILENT, CLOSED, 60.0) == ""
    assert "asked again in 120 s" in ours.why(CLOSED, 60.0)
    assert ours.refused(RouterRefusal("the router said: Action not authorized", SEEN), CLOSED, 200.0)


# -- what it is worth --------------------------------------------------------------------------------------------------


def test_only_the_address_that_others_see_is_tried() -> None:
    """A router may name the address of a third machine, which must not be dialled."""
    ours = held(mapping(OTHER, "9.9.9.9"))
    assert ours.endpoint(SEEN) == f"{SEEN}:{OTHER}"
    assert ours.endpoint("") == ""


@pytest.mark.parametrize(
    ("reached", "port", "carried"),
    [
        ((), OTHER, False),
        ((f"{SEEN}:{OTHER}",), OTHER, True),
        ((f"{SEEN}:{OWN}",), OTHER, False),
        ((f"{SEEN}:{OTHER}", f"{SEEN}:{OWN}"), OTHER, False),
        ((f"{SEEN}:{OTHER}", f"[2001:db8::7]:{OWN}"), OTHER, False),
        ((f"{SEEN}:{OWN}",), OWN, True),
        ((f"45.77.1.9:{OWN}",), OWN, False),
        ((f"[2001:db8::7]:{OWN}",), OWN, False),
        ((f"192.168.7.10:{OWN}", f"{SEEN}:{OTHER}"), OTHER, True),
        ((f"192.168.7.10:{OWN}",), OTHER, False),
    ],
)
def test_a_peer_is_mapped_where_others_reach_it_by_the_routers_port_alone(
    reached: tuple[str, ...], port: int, carried: bool
) -> None:
    here = Surroundings(reachable=True, reached=reached, seen=SEEN, owns=lambda host: host == "45.77.1.9")
    assert held(mapping(port)).carries(here) is carried


def test_nothing_is_carried_by_what_is_not_held() -> None:
    assert not lease().carries(OPEN)


def test_a_port_that_others_do_without_is_given_back() -> None:
    ours = held(mapping(OTHER))
    assert ours.next_request(OPEN, 101.0) is RouterRequest.CLOSE
    assert ours.closed("", 102.0) == f"the router closed port {OTHER}"
    assert ours.next_request(OPEN, 1e6) is None
    six = Surroundings(reachable=None, reached=(f"[2001:db8::7]:{OWN}",), seen=SEEN)
    assert held(mapping(OTHER)).next_request(six, 101.0) is None, "others have IPv4 only"
    near = Surroundings(reachable=False, reached=(f"192.168.7.10:{OWN}",), seen=SEEN)
    assert held(mapping(OTHER)).next_request(near, 101.0) is None, "it is a neighbour"


def test_a_router_that_lies_is_told_once_whatever_it_says_again() -> None:
    ours = held(at=0.0)
    assert ours.notice(CLOSED, 2.0) == "", "the verdict is of before"
    tried = replace(CLOSED, denied=frozenset([f"{SEEN}:{OWN}"]))
    told = [ours.notice(tried, 20.0)]
    for now in range(60, 20_000, 60):
        told.append(ours.notice(tried, float(now)))
        if ours.next_request(tried, float(now)) is RouterRequest.OPEN:
            told.append(ours.opened(mapping(), tried, float(now)))
    assert "nobody gets through" in told[0]
    assert not any(told[1:])
    assert not ours.carries(tried)
    assert "nobody gets through: it does not do so" in ours.why(tried, 2e4)


@pytest.mark.parametrize(
    ("address", "word"),
    [("10.0.0.9", "double NAT"), ("100.64.0.9", "CGNAT"), ("9.9.9.9", f"others see, {SEEN}"), ("", ""), (SEEN, "")],
)
def test_a_second_router_is_named_as_the_reason(address: str, word: str) -> None:
    told = lease().opened(mapping(address=address), CLOSED, 0.0)
    assert word in told
    assert (";" in told) == bool(word)


def test_a_refusal_names_a_second_router_too() -> None:
    said = RouterRefusal("the router said: Action Failed", "")
    assert "a second router is before it" in lease().refused(said, CLOSED, 0.0)
    assert "double NAT" in lease().refused(replace(said, address="192.168.1.2"), CLOSED, 0.0)
    assert lease().refused(replace(said, address=SEEN), CLOSED, 0.0) == said.why
    assert lease().refused(SILENT, CLOSED, 0.0) == SILENT.why


def test_a_router_that_started_anew_is_asked_soon() -> None:
    ours = held(at=0.0)
    through = Surroundings(reachable=True, reached=(f"{SEEN}:{OWN}",), seen=SEEN)
    assert ours.notice(through, 30.0) == ""
    shut = replace(CLOSED, denied=frozenset([f"{SEEN}:{OWN}"]))
    assert "any more" in ours.notice(shut, 300.0)
    assert ours.next_request(shut, 300.0) is RouterRequest.OPEN
    assert ours.opened(mapping(), shut, 301.0) == ""
    assert ours.next_request(shut, 301.0) is None, "once"


# -- giving it back ----------------------------------------------------------------------------------------------------


def test_what_the_router_may_have_opened_meanwhile_is_to_be_closed() -> None:
    ours = lease()
    assert ours.to_close() == 0
    ours.begun(0.0)
    assert ours.to_close() == OWN, "its answer did not come"
    assert ours.closed("", 1.0) == "", "nobody heard of it"
    assert ours.to_close() == 0


def test_a_port_that_could_not_be_given_back_is_told() -> None:
    assert (
        held().closed("the router did not answer", 200.0) == f"port {OWN} was not given back: the router did not answer"
    )
