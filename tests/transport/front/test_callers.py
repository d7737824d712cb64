from __future__ import annotations

import math

import pytest

from peer.protocol.messages import PeerId
from peer.transport.front.callers import (
    FILES_EACH,
    FILES_KEPT,
    FREE_FRAMES,
    HANDSHAKES,
    CallerRank,
    CallerTable,
    FrontCaller,
    FrontLimits,
    seen_as,
)

LIMITS = FrontLimits(connections=6, reserve=2, of_key=2)


def inside(number: int) -> str:
    """Return the name of the front's end of a connection in gRPC's notation."""
    return f"unix-abstract:peer-{number}"


class Callers:
    """A caller table, and the callers that it disconnected."""

    def __init__(self) -> None:
        self.table = CallerTable(LIMITS)
        self.dropped: list[str] = []
        self._port = 40000

    def come(self, host: str) -> tuple[FrontCaller, bool]:
        self._port += 1
        address = f"ipv4:{host}:{self._port}"
        caller = FrontCaller(address, lambda: self.dropped.append(address))
        admitted = self.table.enter(caller)
        if admitted:
            self.table.connected(caller, inside(self._port))
        return caller, admitted

    def prove(self, caller: FrontCaller, key: str) -> None:
        self.table.greeted(caller.seen_as, PeerId(key), proven=True)


def test_the_block_that_holds_most_loses_a_place() -> None:
    callers = Callers()
    crowd = [callers.come(f"192.0.2.{number}") for number in range(5)]
    assert [admitted for _, admitted in crowd] == [True] * 4 + [False], "two places are not for strangers"
    _, admitted = callers.come("198.51.100.7")
    assert admitted
    assert callers.dropped == [crowd[3][0].address], "the youngest of the crowd"
    assert len(callers.table) == 4


def test_a_proven_caller_goes_to_the_reserve_at_once_and_stays() -> None:
    callers = Callers()
    first, _ = callers.come("192.0.2.1")
    callers.prove(first, "friend")
    for number in range(50):
        callers.come(f"10.0.{number}.1")
        callers.come(f"192.0.2.{number}")
    assert first.address not in callers.dropped
    assert len(callers.table) == 5, "four strangers besides"
    assert callers.table.is_proven(first.seen_as)


def test_a_proven_key_keeps_so_many_connections_and_no_more() -> None:
    callers = Callers()
    crowd = [callers.come("192.0.2.1")[0] for _ in range(4)]
    for caller in crowd:
        callers.prove(caller, "friend")
    assert sum(caller.kept_for is not None for caller in crowd) == LIMITS.of_key
    callers.table.leave(crowd[0])
    callers.prove(crowd[3], "friend")
    assert crowd[3].kept_for, "one that leaves makes room"


def test_a_connection_shows_one_key() -> None:
    callers = Callers()
    caller, _ = callers.come("192.0.2.1")
    callers.table.greeted(caller.seen_as, PeerId("stranger"), proven=False)
    callers.prove(caller, "friend")
    assert caller.key == "stranger"
    assert caller.kept_for is None, "a second key over one connection earns it nothing"


def test_only_connections_of_the_front_have_an_origin() -> None:
    callers = Callers()
    caller, _ = callers.come("192.0.2.1")
    assert callers.table.origin(caller.seen_as) == caller.address
    assert callers.table.origin(inside(1)) is None
    assert callers.table.origin("unix:") is None
    callers.table.leave(caller)
    assert callers.table.origin(caller.seen_as) is None


def test_a_caller_that_lost_its_place_meanwhile_gets_no_origin() -> None:
    callers = Callers()
    caller, _ = callers.come("192.0.2.1")
    callers.table.leave(caller)
    callers.table.connected(caller, inside(50000))
    assert callers.table.origin(inside(50000)) is None


def test_a_key_and_an_admitted_call_change_what_a_caller_may_do() -> None:
    changes = []
    table = CallerTable(LIMITS)
    caller = FrontCaller("ipv4:192.0.2.1:1", lambda: None, changed=lambda: changes.append(caller.rank))
    table.enter(caller)
    table.connected(caller, inside(1))
    table.greeted(inside(1), PeerId("friend"), proven=False)
    with table.calling(inside(1)):
        assert caller.calls == 1
    table.greeted(inside(1), PeerId("friend"), proven=True)
    assert changes == [CallerRank.KEYED, CallerRank.KEYED, CallerRank.KEYED, CallerRank.PROVEN]
    with table.calling(inside(2)):
        assert caller.calls == 0, "it is another connection's"


def test_the_largest_of_those_without_a_call_goes_when_all_hold_too_much() -> None:
    callers = Callers()
    crowd = [callers.come(f"10.0.{number}.1")[0] for number in range(4)]
    for number, caller in enumerate(crowd):
        callers.table.record_held(caller, LIMITS.held // 8 + number)
    with callers.table.calling(crowd[3].seen_as):
        callers.table.record_held(crowd[3], LIMITS.held * 2)
        assert not callers.dropped, "an admitted call answers for what its connection holds"
        callers.table.record_held(crowd[0], LIMITS.held)
    assert callers.dropped == [crowd[0].address]
    assert callers.table._held_together == sum(LIMITS.held // 8 + number for number in (1, 2))


def test_blocks_share_handshakes_and_one_does_not_wait_for_another() -> None:
    callers = Callers()
    crowd, _ = callers.come("192.0.2.1")
    other, _ = callers.come("198.51.100.7")
    waits = [callers.table.handshake_wait_s(crowd, 0.0) for _ in range(2000)]
    assert waits[: int(HANDSHAKES.burst)] == [0.0] * int(HANDSHAKES.burst)
    assert 0 < waits[int(HANDSHAKES.burst)] < 0.01
    assert max(wait for wait in waits if wait < math.inf) <= LIMITS.wait_s + 0.01
    assert waits[-1] == math.inf, "it is turned away"
    assert callers.table.handshake_wait_s(other, 0.0) == 0.0
    assert callers.table.handshake_wait_s(crowd, 1.0) < LIMITS.wait_s + 0.01, "later there are new ones"


def test_the_first_frames_of_a_caller_are_free_whatever_its_block_has_used() -> None:
    callers = Callers()
    loud, _ = callers.come("192.0.2.1")
    while callers.table.charge_frames(loud, 100.0, 0.0):
        continue
    newcomer, _ = callers.come("192.0.2.2")
    assert callers.table.charge_frames(newcomer, FREE_FRAMES, 0.0)
    assert not callers.table.charge_frames(newcomer, 1.0, 0.0)
    callers.prove(newcomer, "friend")
    assert callers.table.charge_frames(newcomer, 1.0, 0.0), (
        "those of a proven peer are counted for its connection alone"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (("192.0.2.7", 55312), "ipv4:192.0.2.7:55312"),
        (("2001:db8::7", 55312, 0, 0), "ipv6:%5B2001:db8::7%5D:55312"),
        (None, ""),
        ("", ""),
    ],
)
def test_an_address_is_written_as_grpc_does(name: object, expected: str) -> None:
    assert seen_as(name) == expected


def test_few_files_are_shared_with_the_rest_of_the_process() -> None:
    limits = FrontLimits()
    assert limits.within(math.inf) == limits
    few = limits.within(1024)
    assert few.connections * FILES_EACH + FILES_KEPT <= 1024
    assert 0 < few.reserve < few.connections
    assert limits.within(0).connections > limits.within(0).reserve
