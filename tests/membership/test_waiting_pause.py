"""How often peers that wait for each other look into the directory."""

from __future__ import annotations

import pytest

from peer.membership.peer_table import CALLS_S, WAITS_S, waiting_pause

LEAST_S = 0.2


def test_a_small_swarm_sees_at_once_that_all_are_there() -> None:
    assert waiting_pause(LEAST_S, 4) == LEAST_S


@pytest.mark.parametrize("peers", [1, 2, 4, 8, 16, 20])
def test_a_larger_swarm_asks_its_nodes_no_oftener(peers: int) -> None:
    looks_a_second = peers / waiting_pause(LEAST_S, peers)
    assert looks_a_second * peers <= CALLS_S + 1e-9


def test_nobody_waits_long_for_a_look() -> None:
    assert waiting_pause(LEAST_S, 10_000) == WAITS_S
