from __future__ import annotations

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import Rate, TokenBuckets
from peer.transport.server.admission import CALL_PLACES, HELLO_PLACES, HELLOS_RESERVED
from peer.transport.server.listener import MAX_CALLS
from peer.transport.server.rate_limits import (
    ARTIFACTS,
    CALLS_AT_ONCE,
    CALLS_AT_ONCE_OF_ADDRESS,
    HELLOS,
    HELLOS_AT_ONCE,
    LEAST_STATE,
    PIECES_AT_ONCE_OF_ADDRESS,
    STATES,
    STATES_S,
    Caller,
    CallLimits,
    block_of_network,
    network_of,
)
from peer.transport.server.service import MAX_PIECES, PIECES_RESERVED

HERE, THERE = "192.0.2.7", "192.0.2.8"


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def peer(number: int) -> PeerId:
    return PeerId(f"peer-{number}")


def test_a_bucket_gives_its_burst_then_its_rate_and_says_how_long_to_wait() -> None:
    buckets: TokenBuckets[str] = TokenBuckets(Rate(2.0, 3.0))
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 0.0) == pytest.approx(0.5)
    assert buckets.take("a", 0.49) > 0
    assert buckets.take("a", 0.51) == 0
    assert buckets.take("b", 0.51) == 0, "each caller has its own"
    assert [buckets.take("a", 1000.0) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 1000.0) > 0, "no more than the burst is saved up"


def test_more_than_a_burst_is_granted_from_a_full_bucket_that_then_owes_it() -> None:
    buckets: TokenBuckets[str] = TokenBuckets(Rate(1.0, 10.0))
    assert buckets.take("a", 0.0, 30.0) == 0
    assert buckets.take("a", 20.0, 1.0) == pytest.approx(1.0)
    assert buckets.take("a", 22.0, 1.0) == 0


def test_tables_are_bounded() -> None:
    buckets: TokenBuckets[int] = TokenBuckets(Rate(1.0, 1.0), limit=50)
    for number in range(1000):
        buckets.take(number, 0.0)
    assert len(buckets) == 50
    assert buckets.take(999, 0.0) > 0, "the latest are remembered"


@pytest.mark.parametrize(
    ("seen_as", "network"),
    [
        ("ipv4:192.0.2.7:55312", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:55312", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:7]:1", "2001:db8::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("unix:/tmp/x", "unknown"),
        ("", "unknown"),
    ],
)
def test_an_address_is_an_ipv4_address_or_an_ipv6_home(seen_as: str, network: str) -> None:
    assert network_of(seen_as) == network


def test_sixty_four_honest_peers_behind_one_address_are_within_every_limit() -> None:
    time = Time()
    limits = CallLimits(time)
    for _ in range(2):  # they connect, and reconnect after our restart
        assert all(limits.enter_hello(HERE) == "" for _ in range(64))
        for _ in range(64):
            limits.leave_hello(HERE)
    callers = [Caller(HERE, peer(number)) for number in range(64)]
    for _ in range(60):  # a minute of offers and heartbeats
        for caller in callers:
            for _ in range(5):
                assert limits.enter_call(caller) == ""
                limits.leave_call(caller)
        time.now += 1.0
    for caller in callers:
        assert limits.enter_call(caller) == "", "a swap each"
        assert limits.enter_call(caller) == "", "and a heartbeat"


def test_one_address_cannot_use_up_what_the_server_takes() -> None:
    assert HELLO_PLACES + CALL_PLACES < MAX_CALLS, "gRPC turns callers away without regard to their network"
    assert HELLOS_AT_ONCE <= HELLO_PLACES - HELLOS_RESERVED
    assert PIECES_AT_ONCE_OF_ADDRESS < MAX_PIECES - PIECES_RESERVED
    limits = CallLimits(Time())
    assert [limits.enter_hello(HERE) for _ in range(HELLOS_AT_ONCE)] == [""] * HELLOS_AT_ONCE
    assert limits.enter_hello(HERE) != ""
    assert limits.enter_hello(THERE) == ""
    for number in range(CALLS_AT_ONCE_OF_ADDRESS):
        assert limits.enter_call(Caller(HERE, peer(number))) == ""
    assert limits.enter_call(Caller(HERE, peer(-1))) != ""
    assert limits.enter_call(Caller(THERE, peer(-1))) == ""


@pytest.mark.parametrize(
    ("network", "block"),
    [
        ("192.0.2.7", "192.0.2.0/24"),
        ("2001:db8:0:1ff::/64", "2001:db8:0:100::/56"),
        ("127.0.0.1", "here"),
        ("unknown", "unknown"),
    ],
)
def test_networks_lie_in_blocks(network: str, block: str) -> None:
    assert block_of_network(network) == block


def test_what_ends_makes_room() -> None:
    limits, caller = CallLimits(Time()), Caller(HERE, peer(1))
    for _ in range(CALLS_AT_ONCE):
        assert limits.enter_call(caller) == ""
    assert limits.enter_call(caller) != ""
    assert limits.enter_call(Caller(THERE, peer(1))) != "", "a peer is one peer wherever it calls from"
    limits.leave_call(caller)
    assert limits.enter_call(caller) == ""


def test_an_address_that_only_makes_noise_is_slowed_down_and_recovers() -> None:
    time = Time()
    limits = CallLimits(time)
    tries = 0
    while limits.enter_hello(HERE) == "":
        limits.leave_hello(HERE)
        limits.blame(HERE)
        tries += 1
    assert tries <= HELLOS.burst / 3 + 1
    time.now += 1.0
    assert limits.enter_hello(HERE) == ""
    assert limits.enter_hello(THERE) == ""


def test_calls_of_a_peer_are_limited_in_a_second() -> None:
    time = Time()
    limits, caller = CallLimits(time), Caller(HERE, peer(1))

    def served(wanted: int) -> int:
        count = 0
        for _ in range(wanted):
            if limits.enter_call(caller) == "":
                limits.leave_call(caller)
                count += 1
        return count

    assert served(1000) == 200
    time.now += 1.0
    assert served(1000) == 50
    assert "try again in" in limits.enter_call(caller)


def test_state_may_be_fetched_with_some_retries_but_not_for_ever() -> None:
    time = Time()
    limits, caller, piece = CallLimits(time), Caller(HERE, peer(1)), 16 * 2**20
    limits.set_state_nbytes(10 * LEAST_STATE)

    def pieces_served() -> int:
        count = 0
        while limits.enter_piece(caller, piece) == "":
            limits.leave_piece(caller)
            count += 1
        return count

    assert pieces_served() == STATES * 10 * LEAST_STATE / piece
    assert "bytes of state" in limits.enter_piece(caller, piece)
    assert limits.enter_piece(Caller(HERE, peer(2)), piece) == "", "another peer has its own"
    time.now += STATES_S / 2
    assert 0 < pieces_served() <= STATES * 10 * LEAST_STATE / piece / 2


def test_artifacts_have_a_bound_of_their_own() -> None:
    time = Time()
    limits, caller, piece = CallLimits(time), Caller(HERE, peer(1)), 16 * 2**20

    def pieces_served(*, artifact: bool) -> int:
        count = 0
        while limits.enter_piece(caller, piece, artifact=artifact) == "":
            limits.leave_piece(caller)
            count += 1
        return count

    assert pieces_served(artifact=True) == ARTIFACTS.burst // piece
    assert "bytes of artifacts" in limits.enter_piece(caller, piece, artifact=True)
    assert pieces_served(artifact=False) == STATES * LEAST_STATE / piece, "the state comes all the same"
    time.now += STATES_S / 2
    assert 0 < pieces_served(artifact=True) <= ARTIFACTS.burst / piece / 2 + 1


def test_pieces_under_way_leave_a_place_for_other_addresses() -> None:
    limits = CallLimits(Time())
    for number in range(PIECES_AT_ONCE_OF_ADDRESS):
        assert limits.enter_piece(Caller(HERE, peer(number)), 1) == ""
    assert limits.enter_piece(Caller(HERE, peer(99)), 1) != ""
    assert limits.enter_piece(Caller(THERE, peer(99)), 1) == ""
