from __future__ import annotations

import math

import pytest

from peer.protocol.messages import PeerId
from peer.transport.front.callers import FILES_EACH, FILES_KEPT, CallerTable, FrontCaller, FrontLimits, seen_as

LIMITS = FrontLimits(connections=6, reserve=2, of_key=2)


class Callers:
    """A table, and who was hung up on."""

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
            self.table.connected(caller, self._port)
        return caller, admitted

    def prove(self, caller: FrontCaller, key: str) -> None:
        self.table.greeted(f"ipv4:127.0.0.1:{caller.port}", PeerId(key), proven=True)


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
    assert callers.table.is_proven(f"ipv4:127.0.0.1:{first.port}")


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
    inside = f"ipv4:127.0.0.1:{caller.port}"
    callers.table.greeted(inside, PeerId("stranger"), proven=False)
    callers.prove(caller, "friend")
    assert caller.key == "stranger"
    assert caller.kept_for is None, "a second key over one connection earns it nothing"


def test_only_connections_of_the_front_have_an_origin() -> None:
    callers = Callers()
    caller, _ = callers.come("192.0.2.1")
    assert callers.table.origin(f"ipv4:127.0.0.1:{caller.port}") == caller.address
    assert callers.table.origin("ipv4:127.0.0.1:39999") is None
    assert callers.table.origin(f"ipv4:127.0.0.2:{caller.port}") is None
    assert callers.table.origin("unix:") is None
    callers.table.leave(caller)
    assert callers.table.origin(f"ipv4:127.0.0.1:{caller.port}") is None, "the port may be another program's by now"


def test_a_caller_that_lost_its_place_meanwhile_gets_no_origin() -> None:
    callers = Callers()
    caller, _ = callers.come("192.0.2.1")
    callers.table.leave(caller)
    callers.table.connected(caller, 50000)
    assert callers.table.origin("ipv4:127.0.0.1:50000") is None


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
