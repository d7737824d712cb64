"""Tests of the order in which endpoints are tried."""

from peer.protocol.endpoints import interleaved


def test_addresses_of_both_versions_take_turns() -> None:
    four, six = [f"192.0.2.{n}:1" for n in (1, 2, 3)], [f"[2001:db8::{n}]:1" for n in (1, 2)]
    assert interleaved([*four, *six]) == (four[0], six[0], four[1], six[1], four[2])
    assert interleaved([six[0], *four]) == (six[0], *four)
    assert interleaved(four) == tuple(four)
    assert interleaved(["node.example:1", six[0]]) == ("node.example:1", six[0])
    assert interleaved([]) == ()
