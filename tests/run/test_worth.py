"""The expected worth of joining: measured, computed from the laws, or not known."""

from __future__ import annotations

import pytest

from peer.methods.registry import PRESETS
from peer.run.worth import BY_PARAMS, BY_TOKENS, FLOOR, by_law, expected_worth, worth_sentence

BUILT_IN = 217_664


@pytest.mark.parametrize("parameters", [35_000_000, 125_000_000, 2_400_000_000])
@pytest.mark.parametrize("peers", [1, 2, 4, 8])
def test_one_machine_has_the_groups_loss_after_so_many_tokens(parameters: int, peers: int) -> None:
    def alone(tokens: float) -> float:
        return FLOOR + BY_PARAMS[0] / parameters ** BY_PARAMS[1] + BY_TOKENS[0] / tokens ** BY_TOKENS[1]

    worth = by_law(parameters, peers)
    of_each = 20 * parameters / peers
    assert alone(worth * of_each) == pytest.approx(alone(20 * parameters) * peers**0.0116)
    assert 1 <= worth <= peers


def test_the_worth_of_the_papers_size_is_shown_with_both_sources() -> None:
    found = expected_worth(125_000_000, PRESETS["diloco"].method, 4)
    assert found.machines == pytest.approx(3.32, abs=0.005)
    assert "2503.09799" in found.reason
    assert "2404.10102" in found.reason
    assert worth_sentence(125_000_000, PRESETS["diloco"].method).startswith(
        "4 peers come as far as 3.3 machines alone would ("
    )


@pytest.mark.parametrize(
    ("parameters", "preset", "peers", "words"),
    [
        (1_234_567, "diloco", 4, "not known for 1,234,567 parameters"),
        (7_000_000_000, "diloco", 4, "not known for 7,000,000,000 parameters"),
        (125_000_000, "gossip", 4, "not known for pairs of this size; 4 peers of a group: 3.3"),
        (125_000_000, "diloco", 9, "not known for 9 peers"),
        (BUILT_IN, "gossip", 5, "not measured with 5 peers, only with "),
    ],
)
def test_what_is_not_known_has_no_number(parameters: int, preset: str, peers: int, words: str) -> None:
    found = expected_worth(parameters, PRESETS[preset].method, peers)
    assert found.machines is None
    assert found.reason.startswith(words)


def test_nobody_gains_where_nobody_exchanges() -> None:
    assert expected_worth(BUILT_IN, PRESETS["none"].method, 4).machines == 1
    assert worth_sentence(BUILT_IN, PRESETS["none"].method).startswith("nobody exchanges")
