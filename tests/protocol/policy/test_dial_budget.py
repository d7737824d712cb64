"""Addresses that do not answer are dialled seldom, however many keys name them."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.policy.dial_budget import ADDRESS, BLOCK, HOST, DialBudget

VICTIM = "203.0.113.7:4810"


def dials(budget: DialBudget, endpoints: list[str], now: float = 0.0) -> int:
    """Let a fresh key name each endpoint, and return how many endpoints are dialled."""
    return sum(
        budget.take(PeerId(f"key {now} {number}"), endpoint, now) is None for number, endpoint in enumerate(endpoints)
    )


def test_one_address_has_three_dials_and_then_one_a_minute() -> None:
    budget = DialBudget()
    assert dials(budget, 150 * [VICTIM]) == ADDRESS.burst
    assert sum(dials(budget, 150 * [VICTIM], now) for now in range(1, 601)) == 10


def test_a_host_is_not_dialled_at_every_port_nor_a_block_at_every_host() -> None:
    budget = DialBudget()
    assert dials(budget, [f"203.0.113.7:{port}" for port in range(1, 500)]) == HOST.burst
    assert dials(budget, [f"203.0.113.{host}:{port}" for host in range(1, 250) for port in (1, 2)]) == (
        BLOCK.burst - HOST.burst
    )
    assert dials(budget, ["198.51.100.1:1"]) == 1, "others are dialled as ever"


def test_a_shortage_says_why_and_for_how_long() -> None:
    budget = DialBudget()
    dials(budget, 3 * [VICTIM])
    short = budget.take(PeerId("fourth"), VICTIM, 0.0)
    assert str(short) == f"not dialled: {VICTIM} did not answer 3 others, again in 60 s"


def test_a_key_that_answered_is_free_at_its_host_and_gives_its_dial_back() -> None:
    budget, ada = DialBudget(), PeerId("ada")
    for _ in range(100):
        assert budget.take(ada, VICTIM, 0.0) is None
        budget.answered(ada, VICTIM, 0.0)
    assert dials(budget, 150 * [VICTIM]) == ADDRESS.burst
    assert budget.take(ada, "203.0.113.7:9999", 0.0) is None, "it may have moved to another port"
    assert budget.take(PeerId("eve"), VICTIM, 0.0) is not None
    assert dials(budget, [f"203.0.113.7:{port}" for port in range(1, 500)]) == HOST.burst - ADDRESS.burst


def test_one_that_called_is_dialled_once() -> None:
    budget, ada = DialBudget(), PeerId("ada")
    dials(budget, 150 * [VICTIM])
    budget.called(ada, "203.0.113.7")
    assert budget.take(ada, VICTIM, 0.0) is None
    assert budget.take(ada, VICTIM, 0.0) is not None


def test_a_laboratory_of_one_host_counts_by_address_alone() -> None:
    budget = DialBudget()
    assert dials(budget, [f"127.0.0.1:{port}" for port in range(1, 400)]) == 399
    assert dials(budget, 9 * ["192.168.1.1:80"]) == ADDRESS.burst


def test_what_is_remembered_is_bounded() -> None:
    budget = DialBudget()
    for number in range(10_000):
        budget.take(PeerId(f"key {number}"), f"10.0.{number // 250}.{number % 250}:1", 0.0)
        budget.called(PeerId(f"key {number}"), "10.0.0.1")
        budget.answered(PeerId(f"key {number}"), f"10.1.{number // 250}.{number % 250}:1", 0.0)
    assert max(len(budget._failed), len(budget._answered), len(budget._called)) <= 4096
