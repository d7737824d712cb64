from __future__ import annotations

from peer.protocol.endpoints import HERE
from peer.protocol.messages import PeerId
from peer.protocol.policy.state_ration import OF_A_BLOCK, OF_A_KEY, PERIOD_S, WANTED_S, StateRation

STATE = 100.0
BLOCK = "198.51.100.0/24"


def taken(ration: StateRation, keys: int, now: float, block: str = BLOCK) -> float:
    """Return the bytes that `keys` new keys of one block get, if each takes as much as it can."""
    got = 0.0
    for number in range(keys):
        peer = PeerId(f"{block} {now} {number}")
        for _ in range(100):
            if ration.wait_s(peer, block, 10, now):
                break
            ration.charge(peer, block, 10, now)
            got += 10
    return got


def test_while_nobody_proven_wants_any_a_newcomer_has_all_it_asks_for() -> None:
    assert taken(StateRation(STATE), 1, 1000.0) == 1000.0


def test_a_key_and_a_block_have_a_ration_while_proven_peers_want_state() -> None:
    ration = StateRation(STATE)
    ration.note_demand(1000.0)
    assert taken(ration, 1, 1000.0) == OF_A_KEY * STATE
    assert taken(ration, 40, 1000.1) <= OF_A_BLOCK * STATE, "together"
    assert taken(ration, 1, 1000.2, "203.0.113.0/24") == OF_A_KEY * STATE, "another network"
    assert taken(ration, 1, 1001.0 + WANTED_S) == 1000.0, "nobody proven asks any more"


def test_what_was_taken_in_calm_counts() -> None:
    ration = StateRation(STATE)
    taken(ration, 1, 1000.0)
    ration.note_demand(1001.0)
    assert taken(ration, 40, 1001.0) < 0.1 * STATE
    ration.note_demand(1000.0 + PERIOD_S)
    assert taken(ration, 1, 1000.0 + PERIOD_S) == OF_A_KEY * STATE


def test_on_one_machine_each_key_has_its_ration() -> None:
    ration = StateRation(STATE)
    ration.note_demand(1000.0)
    assert taken(ration, 16, 1000.0, HERE) == 16 * OF_A_KEY * STATE
