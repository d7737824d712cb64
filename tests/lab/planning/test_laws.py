"""The scaling laws against the tables of the paper."""

from __future__ import annotations

import pytest

from peer.lab.planning import laws

# arXiv 2503.09799, Table 4: C4 loss with 1, 2, 4 and 8 replicas.
MEASURED = {
    35e6: (3.482, 3.508, 3.554, 3.621),
    90e6: (3.162, 3.182, 3.213, 3.265),
    180e6: (2.943, 2.957, 2.981, 3.019),
    335e6: (2.777, 2.788, 2.808, 2.841),
    550e6: (2.645, 2.657, 2.673, 2.698),
    1.3e9: (2.451, 2.464, 2.472, 2.493),
    2.4e9: (2.317, 2.323, 2.332, 2.351),
}


@pytest.mark.parametrize("params", MEASURED)
def test_the_joint_law_meets_the_measured_losses(params: float) -> None:
    """Within 2 %: the paper's own fit is off by that much at 35 M parameters and 8 replicas."""
    for peers, measured in zip((1, 2, 4, 8), MEASURED[params], strict=True):
        derived = laws.expected_loss(params, peers, 20 * params, 30)
        assert derived.value == pytest.approx(measured, rel=0.02)
        assert derived.outside == ()


@pytest.mark.parametrize(
    ("params", "peers", "rate"),
    [
        (125e6, 1, 1.6e-3),
        (125e6, 4, 2.4e-3),
        (125e6, 8, 2.9e-3),
        (1.3e9, 1, 2.0e-4),
        (1.3e9, 4, 3.0e-4),
        (1.3e9, 8, 3.7e-4),
    ],
)
def test_inner_learning_rates(params: float, peers: int, rate: float) -> None:
    assert float(f"{laws.inner_lr(params, peers).value:.1e}") == rate


def test_the_batch_is_counted_in_sequences() -> None:
    """1.3 B parameters, one peer: 134 sequences, 274,000 tokens."""
    assert laws.batch_tokens(1.3e9, 1).value == pytest.approx(134 * 2048, rel=0.01)


def test_outer_learning_rates() -> None:
    assert [laws.outer_lr(peers).value for peers in (1, 2, 4, 8)] == [0.4, 0.6, 0.6, 0.8]
    assert [laws.outer_lr(peers).value for peers in (3, 5, 7, 64)] == [0.6, 0.6, 0.8, 0.8]


def test_a_slip_in_an_exponent_would_be_seen() -> None:
    """The measured tables distinguish the law from wrong ones: another sign, and a fit without peers."""
    right = laws.LOSS.at(1.3e9, 8)
    assert laws.PowerLaw(19.226, -0.0985, -0.0116).at(1.3e9, 8) < 2.493 * 0.98 < right
    assert laws.PowerLaw(22256.0, -0.8827, 0.0).at(125e6, 4) == pytest.approx(1.6e-3, rel=0.02)


@pytest.mark.parametrize(
    ("params", "peers", "tokens", "every", "words"),
    [
        (1e6, 4, 20e6, 30, "parameters"),
        (10e9, 4, 200e9, 30, "measured 1 and 4 % more"),
        (125e6, 9, 2.5e9, 30, "9 peers"),
        (125e6, 4, 5e9, 30, "40 tokens a parameter"),
        (125e6, 4, 2.5e9, 100, "100 inner steps"),
        (125e6, 4, 2.5e9, 500, "no further than 300"),
    ],
)
def test_what_lies_outside_is_told(params: float, peers: int, tokens: float, every: int, words: str) -> None:
    assert any(words in told for told in laws.expected_loss(params, peers, tokens, every).outside)


def test_beyond_the_law_the_paper_measured_more() -> None:
    """Table 5, 4 replicas: 2.230 for 4 B, 2.096 for 10 B."""
    assert 2.230 / laws.LOSS.at(4e9, 4) == pytest.approx(1.01, abs=0.005)
    assert 2.096 / laws.LOSS.at(10e9, 4) == pytest.approx(1.04, abs=0.005)


def test_a_learning_rate_is_not_extrapolated_into_the_absurd() -> None:
    edge = laws.inner_lr(35e6, 8).value
    assert laws.inner_lr(2e5, 64).value == edge < 0.02
    assert "held at the edge" in laws.inner_lr(2e5, 64).reason
    assert len(laws.inner_lr(2e5, 64).outside) == 2
