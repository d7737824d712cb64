"""The warnings of `peer swarm` on a machine that is too small for the requested number of peers."""

from __future__ import annotations

from peer.lab.localswarm.room import IN_STEP, LEAST_STOP_S, P2PD_BYTES, shortages, start_s, stop_s
from peer.run.manifest import default_text, parse_manifest
from peer.run.memory import memory_need

NEED = memory_need(parse_manifest(default_text().encode())).total
EACH = NEED + P2PD_BYTES
PLENTY = 10**12


def test_a_swarm_that_fits_hears_nothing() -> None:
    assert shortages(NEED, 2 * IN_STEP, 2, PLENTY, paced=False) == []
    assert shortages(NEED, 4, 4, None, paced=False) == []


def test_too_many_trainers_hear_how_to_rest() -> None:
    (found,) = shortages(NEED, 2 * IN_STEP + 1, 2, PLENTY, paced=False)
    assert "13 peers share 2 cores" in found
    assert "--step-seconds" in found


def test_trainers_that_rest_are_not_warned() -> None:
    assert shortages(NEED, 50, 2, PLENTY, paced=True) == []


def test_too_little_memory_says_for_how_many_there_is_room() -> None:
    (found,) = shortages(NEED, 5, 2, 4 * EACH + 1, paced=True)
    assert found.startswith("5 peers need about 2.79 GB of memory, 558.0 MB each, estimated, and 2.23 GB are free")
    assert found.endswith("There is room for 4")


def test_a_start_takes_longer_the_more_share_a_core() -> None:
    assert start_s(24, 2) > start_s(12, 2) > start_s(12, 4)


def test_many_that_leave_at_once_get_longer() -> None:
    assert stop_s(4, 2) == LEAST_STOP_S
    assert stop_s(50, 2) == 50.0
