"""The computed growth of the replicas' variance is compared with a thousand replicas in random pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peer.errors import ManifestError
from peer.methods.method import Method
from peer.methods.rule import pull_growth, spread_growth
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.golden.games import game
from tests.golden.reference import play

REPLICAS, ELEMENTS, SETTLED, ROUNDS = 2000, 8, 40, 160


def method(
    rule: str, outer_lr: float, outer_momentum: float, consensus: float | None = None, alpha: float = 0.0
) -> Method:
    return Method(
        topology="pair",
        rule=rule,
        outer_lr=outer_lr,
        outer_momentum=outer_momentum,
        consensus=outer_lr if consensus is None else consensus,
        codec="fp32",
        fragment_update_alpha=alpha,
    )


def played(one: Method, seed: int) -> float:
    """Return the mean growth of the variance per round, of replicas without gradients.

    The rules are implemented a second time here."""
    rng = np.random.default_rng(seed)
    lr, mu, pull, alpha = one.outer_lr, one.outer_momentum, one.consensus, one.fragment_update_alpha
    phi, m, theta = rng.normal(size=(3, REPLICAS, ELEMENTS))
    grown = []
    for _ in range(ROUNDS):
        order = rng.permutation(REPLICAS).reshape(2, -1)
        other = np.empty(REPLICAS, int)
        other[order[0]], other[order[1]] = order[1], order[0]
        if one.rule == "gasloc":
            u = phi - lr * (phi - theta)
            after = u - pull * (u - u[other]) / 2 + mu * (u - (phi - m))
            phi, m = after, after - u
        else:
            g = ((phi - theta) + (phi - theta)[other]) / 2
            m = mu * m - lr * g - pull * (phi - (phi + phi[other]) / 2)
            phi = phi + m
        theta = alpha * theta + (1 - alpha) * phi
        phi, m, theta = (part - part.mean(0) for part in (phi, m, theta))
        size = np.sqrt(phi.var() + m.var() + theta.var())
        phi, m, theta = phi / size, m / size, theta / size
        grown.append(size**2)
    return float(np.exp(np.log(grown[SETTLED:]).mean()))


METHODS = {
    "the preset noloco": method("noloco", 0.7, 0.5),
    "noloco, too much momentum": method("noloco", 0.7, 0.9),
    "noloco, that momentum with a half kept": method("noloco", 0.7, 0.9, alpha=0.5),
    "the preset streaming-noloco": method("noloco", 0.7, 0.5, alpha=0.5),
    "noloco, consensus apart": method("noloco", 0.7, 0.5, 0.3),
    "noloco, consensus apart, a half kept": method("noloco", 0.7, 0.5, 0.3, alpha=0.5),
    "noloco, a large step": method("noloco", 3.0, 0.5, 0.7, alpha=0.5),
    "noloco, nearly all kept": method("noloco", 1.5, 0.3, 1.2, alpha=0.9),
    "the preset gasloc": method("gasloc", 1.0, 0.3, 1.0),
    "gasloc, too much momentum": method("gasloc", 1.0, 0.75, 1.0),
    "gasloc, a half kept": method("gasloc", 1.0, 0.6, 1.0, alpha=0.5),
    "gasloc, a step of its own": method("gasloc", 0.7, 0.4, 0.8, alpha=0.3),
}


@pytest.mark.parametrize("one", METHODS.values(), ids=METHODS)
def test_the_growth_is_that_of_replicas_that_meet_at_random(one: Method) -> None:
    assert spread_growth(one) == pytest.approx(played(one, seed=3), abs=0.01)


@pytest.mark.parametrize(
    ("momentum", "consensus", "growth"),
    [(0.0, 1.0, 0.5), (0.0, 0.7, 0.545), (0.3, 0.7, 0.553), (0.5, 0.7, 0.7), (0.7, 0.7, 0.891), (0.9, 0.7, 1.098)],
)
def test_noloco_with_nothing_kept(momentum: float, consensus: float, growth: float) -> None:
    assert spread_growth(method("noloco", consensus, momentum)) == pytest.approx(growth, abs=6e-4)
    assert spread_growth(method("noloco", 0.2, momentum, consensus)) == pytest.approx(growth, abs=6e-4), "no outer_lr"


@pytest.mark.parametrize(
    ("gamma", "growth"), [(0.0, 0.5), (0.1, 0.512), (0.2, 0.552), (0.3, 0.617), (0.4, 0.699), (0.5, 0.792)]
)
def test_gasloc_with_nothing_kept(gamma: float, growth: float) -> None:
    assert spread_growth(method("gasloc", 1.0, gamma)) == pytest.approx(growth, abs=6e-4)
    assert spread_growth(method("gasloc", 0.6, gamma, 1.0)) == pytest.approx(growth, abs=6e-4), "no outer_lr"


def test_gasloc_shrinks_below_the_root_of_a_half() -> None:
    assert spread_growth(method("gasloc", 1.0, 0.707)) < 1 < spread_growth(method("gasloc", 1.0, 0.708))


PULLED = [
    ("noloco", 0.7, 0.5, 0.5),
    ("noloco", 3.0, 0.3, 0.9),
    ("gasloc", 1.0, 0.3, 0.5),
    ("gasloc", 4.0, 0.5, 0.5),
    ("nesterov", 0.7, 0.5, 0.5),
    ("nesterov", 3.0, 0.5, 0.5),
    ("sgd", 4.0, 0.0, 0.5),
]


@pytest.mark.parametrize(("rule", "outer_lr", "outer_momentum", "alpha"), PULLED)
def test_params_and_outer_params_move_apart_as_the_equations_say(
    rule: str, outer_lr: float, outer_momentum: float, alpha: float
) -> None:
    """Play two replicas that make the same step once and then have no gradients, with the golden reference.

    The difference in a round follows from the differences in the two rounds before it."""
    terms = method(rule, outer_lr, outer_momentum, alpha=alpha)
    rule_of = {"rule": rule, "outer_lr": outer_lr, "outer_momentum": outer_momentum, "consensus": terms.consensus}
    alike = game(1, replicas=2, group=True, sync_every=1, periods=6, alpha=alpha, **rule_of)
    alike.start[:] = alike.updates[1:] = 0.0
    alike.updates[0] = alike.updates[0, 0]
    moments = play(alike)
    apart = [moments[0, at].params[0] - moments[0, at].outer[0] for at in range(2, 6)]
    terms_of_two = np.linalg.lstsq([apart[1::-1], apart[2:0:-1]], apart[2:], rcond=1e-9)[0]
    assert np.abs(np.roots([1.0, *-terms_of_two])).max() == pytest.approx(pull_growth(terms), abs=1e-6)


def test_what_moves_apart_is_refused_whatever_the_topology() -> None:
    for preset, terms in (
        ("streaming-noloco", {"outer_lr": 4.0, "outer_momentum": 0.3, "consensus": 0.2}),
        ("streaming-diloco", {"outer_lr": 4.0}),
        ("snoo", {"outer_lr": 4.0, "schedule": "streaming"}),
    ):
        assert "params and outer_params would move apart" in str(checked(preset=preset, **terms))
    assert isinstance(checked(preset="streaming-diloco", outer_lr=2.2), Method)
    assert "2.25 with outer_momentum 0.5" in str(checked(preset="streaming-diloco", outer_lr=2.25))
    assert isinstance(checked(preset="diloco", outer_lr=4.0), Method)


def checked(**options: Any) -> Method | str:
    try:
        return resolve(SyncSection.model_validate(options))
    except ManifestError as error:
        return error.found


def test_what_a_merge_keeps_counts() -> None:
    half = checked(preset="streaming-noloco", outer_momentum=0.9)
    assert isinstance(half, Method)
    assert spread_growth(half) == pytest.approx(0.81, abs=0.01)
    grows = checked(preset="noloco", outer_momentum=0.9)
    assert "outer_momentum 0.9 with outer_lr 0.7, consensus 0.7 diverges" in str(grows)
    assert "1.098" in str(grows)


def test_gasloc_that_grows_is_refused() -> None:
    assert "diverges" in str(checked(preset="gasloc", outer_momentum=0.72))
    assert isinstance(checked(preset="gasloc", outer_momentum=0.7), Method)
